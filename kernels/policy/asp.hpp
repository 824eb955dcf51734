// Asynchronous parallel: each push is applied when it arrives, and no worker waits.
#pragma once

#include "policy.hpp"

namespace gradientflow::policy {

class Asp : public Policy {
 public:
  Answer pushed(int worker, double seconds) override;
  Answer departed(int worker, double seconds) override;
};

}  // namespace gradientflow::policy

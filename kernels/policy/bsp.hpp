// Bulk synchronous parallel: a round, one push of every present worker, is applied together, and all workers wait for
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy.hpp"

namespace gradientflow::policy {

class Bsp : public Policy {
 public:
  explicit Bsp(int workers) : waiting_(static_cast<std::size_t>(workers)), here_(waiting_.size(), true) {}
  Answer pushed(int worker, double seconds) override;
  Answer departed(int worker, double seconds) override;

 private:
  [[nodiscard]] Answer apply_complete_rounds();

  std::vector<std::int64_t> waiting_;  // number of each worker's pushes that are not applied yet
  std::vector<bool> here_;
};

}  // namespace gradientflow::policy

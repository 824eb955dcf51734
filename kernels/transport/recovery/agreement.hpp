// Consensus of ranks (see consensus.hpp) over their messages.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "../endpoint.hpp"
#include "consensus.hpp"

namespace gradientflow::transport {

struct Terms {
  double timeout = 300.0;                       // seconds after which a rank that has not come counts as silent
  Endpoint::IsAlive is_alive = {};              // liveness of a rank's process, as known from elsewhere
  std::function<std::vector<int>()> left = {};  // ranks that have closed the communicator, and will not come
  std::function<void()> check = {};             // called several times a second; may throw
};

// Returns the decision of all living ranks of the endpoint. Only this call may use the endpoint. Ranks that are neither
// alive nor have left are told that they are excluded, and nothing is exchanged with them any more.
[[nodiscard]] Decision agree(Endpoint& endpoint, const std::string& value, const Terms& terms);

}  // namespace gradientflow::transport

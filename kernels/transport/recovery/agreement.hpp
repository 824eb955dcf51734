// The consensus of ranks (see consensus.hpp) over their messages.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "../endpoint.hpp"
#include "consensus.hpp"

namespace gradientflow::transport {

struct Terms {
  double timeout = 300.0;                       // seconds after which a rank that does not come is silent
  Endpoint::IsAlive is_alive = {};              // whether the process of a rank lives, as far as is known otherwise
  std::function<std::vector<int>()> left = {};  // the ranks that have closed the communicator, and will not come
  std::function<void()> check = {};             // called several times a second; may throw
};

// What all ranks of the endpoint that live come to. Nothing else uses the endpoint. Ranks that are not alive by this
// decision are told so, and nothing is exchanged with them any more.
[[nodiscard]] Decision agree(Endpoint& endpoint, const std::string& value, const Terms& terms);

}  // namespace gradientflow::transport

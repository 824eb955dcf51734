// What every rank contributes, given to every rank: through rank 0, which knows who is missing and tells the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../endpoint.hpp"

namespace gradientflow::transport::tcp {

inline constexpr int first_gathering_tag = 1 << 30;  // below it are those of users of an endpoint

struct Contribution {
  const void* data;
  std::size_t bytes;  // the same on all ranks
  std::string what;   // is gathered, for errors
  double timeout;     // seconds, as in the settings
  int timeouts;       // that it may take
};

// Collective. `number`: of the gathering among those of the endpoint, the same on all ranks. Throws as
// Endpoint::allgather does. `check_peers`: see Endpoint::split.
[[nodiscard]] std::vector<std::byte> gather(Endpoint& endpoint, std::uint32_t number, const Contribution& mine,
                                            const Endpoint::CheckPeers& check_peers);

}  // namespace gradientflow::transport::tcp

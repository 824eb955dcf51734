// What every rank contributes, given to every rank: through rank 0, which knows who is missing and tells the others.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "endpoint.hpp"

namespace gradientflow::transport {

struct Contribution {
  const void* data;
  std::size_t bytes;  // the same on all ranks
  std::string what;   // is gathered, for errors
  double timeout;     // seconds, as in the settings
  int timeouts;       // that it may take
};

// Collective. `tag`: of its messages, the same on all ranks; another one for the next gathering, as messages of one
// that has failed may still come. Throws as Endpoint::allgather does. `check_peers`: see Endpoint::split.
[[nodiscard]] std::vector<std::byte> gather(Endpoint& endpoint, int tag, const Contribution& mine,
                                            const Endpoint::CheckPeers& check_peers);

// The ranks that split() puts together: those whose color is that of `rank`, in the order of their keys.
struct Wish {
  int color;
  int key;
};
[[nodiscard]] std::vector<int> together(const std::vector<Wish>& wishes, int rank);

}  // namespace gradientflow::transport

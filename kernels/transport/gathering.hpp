// Gathering of every rank's contribution at every rank, through rank 0, which tells all ranks if some are missing.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "endpoint.hpp"

namespace gradientflow::transport {

struct Contribution {
  const void* data;
  std::size_t bytes;  // size, the same on all ranks
  std::string what;   // name of the data, used in errors
  double timeout;     // seconds, as in the settings
  int timeouts;       // limit of the duration, in timeouts
};

// Gathers all contributions. Collective. `tag`: the same on all ranks, and different in the next gathering, because
// messages of a failed gathering may still arrive. Throws as Endpoint::allgather does. `check_peers`: see
// Endpoint::split.
[[nodiscard]] std::vector<std::byte> gather(Endpoint& endpoint, int tag, const Contribution& mine,
                                            const Endpoint::CheckPeers& check_peers);

// Arguments of one rank's split(). together() returns the ranks with the color of `rank`, in the order of their keys.
struct SplitArguments {
  int color;
  int key;
};
[[nodiscard]] std::vector<int> together(const std::vector<SplitArguments>& wishes, int rank);

}  // namespace gradientflow::transport

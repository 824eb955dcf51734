// Paths of a call on memory of the host: the algorithms that can serve it.
//
//   alone               one rank: a copy at most
// inside a node:
//   announcement        small tensors travel inside the announcements
//   node_memory         all tensors lie in one segment of node memory: no copy at all
//   direct              large ordinary arrays, read from peers' processes
//   staged              ordinary arrays, through staging slots
// between nodes, or if the user asks for them:
//   agreement           small tensors are reduced along with the agreement on the call; a barrier is only an agreement
//   recursive_doubling  small tensors, and all sizes between two ranks
//   ring                large tensors, also reduce_scatter and allgather
//   hierarchical        nodes of several ranks: reduce in the node, exchange between nodes by one rank of each
//   hierarchical_lanes  the same with every local rank in the exchange, for its own slice
//   binomial, chain     broadcast and reduce, small and large
//   pairwise            alltoall, gather, scatter, and allgather of small tensors; allreduce of medium-sized tensors
//   mpi                 the MPI library's own collectives
// device_selector.hpp has the paths of a call on CUDA devices.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace gradientflow::collective {

enum class Between { ring, recursive_doubling, pairwise };  // algorithm between nodes

enum class Path {
  alone,
  announcement,
  node_memory,
  direct,
  staged,
  agreement,
  recursive_doubling,
  ring,
  hierarchical,
  hierarchical_lanes,
  binomial,
  chain,
  pairwise,
  mpi
};

inline constexpr std::array<std::string_view, 14> path_names = {
    "alone", "announcement", "node_memory",        "direct",   "staged", "agreement", "recursive_doubling",
    "ring",  "hierarchical", "hierarchical_lanes", "binomial", "chain",  "pairwise",  "mpi"};
[[nodiscard]] constexpr std::string_view name_of(Path path) { return path_names[static_cast<std::size_t>(path)]; }
[[nodiscard]] std::string_view name_of(Between between);

// Tells if a path uses only memory of the node.
[[nodiscard]] bool is_inside_node(Path path);

struct Choice {
  Path path;
  const char* reason;
  Between between = Between::ring;  // algorithm between nodes of a hierarchical path
};

}  // namespace gradientflow::collective

// Which way a call goes. Pure: the same answer on every rank, from what all ranks know.
//
//   alone               one rank: a copy at most
// inside a node:
//   announcement        small tensors travel inside the announcements
//   node_memory         all tensors lie in one segment of node memory: no copy at all
//   direct              large ordinary arrays, read from the other processes
//   staged              ordinary arrays, through staging slots
// between nodes, or where the user asks for them:
//   agreement           small tensors are reduced along with the agreement on the call; a barrier is nothing else
//   recursive_doubling  small tensors, and all between two ranks
//   ring                large ones, also reduce_scatter and allgather
//   hierarchical        nodes of several ranks: reduce in the node, one rank of it in the exchange between nodes
//   hierarchical_lanes  the same with every local rank in the exchange, for a slice of its own
//   binomial, chain     broadcast and reduce, small and large
//   pairwise            alltoall, gather, scatter, and allgather of small tensors; allreduce of middle-sized ones
//   mpi                 the MPI library's own collectives
// The ways of tensors on CUDA devices stand in device_selector.hpp.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "../../base/config.hpp"
#include "../../transport/signature.hpp"

namespace gradientflow::collective {

enum class Between { ring, recursive_doubling, pairwise };  // the algorithm between nodes

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
  mpi,
  device_memory,
  device_staged,
  nccl,
  nccl_hierarchical,
  through_host
};

[[nodiscard]] std::string_view name_of(Path path);
[[nodiscard]] std::string_view name_of(Between between);

// Whether a path uses nothing but the node's memory.
[[nodiscard]] bool is_inside_node(Path path);

// What the selector knows about a call.
struct Situation {
  transport::CallKind kind;
  transport::Algorithm algorithm;
  std::size_t bytes;  // that a rank puts in, at most
  bool wire = false;  // values are rounded on their way between nodes
  int ranks;
  int nodes;
  int smallest_node;  // ranks of it
  int largest_node;
  bool in_node_memory;       // the tensors of all ranks lie in one segment
  bool direct_read_allowed;  // by the kernel, on every rank
};

struct Choice {
  Path path;
  const char* reason;
  Between between = Between::ring;  // the nodes, where there are two levels
};

// The most bytes that the agreement on a call carries along.
[[nodiscard]] std::size_t agreement_limit(int nodes, int largest_node, const Config& config);

// Throws Error(value) where the algorithm asked for cannot serve the call: none silently becomes another.
[[nodiscard]] Choice select(const Situation& situation, const Config& config);

// The choices for all sizes, smallest first; each holds from so many bytes on. `situation.bytes` is not read.
struct Way {
  std::size_t from;
  Choice choice;
};

[[nodiscard]] std::vector<Way> select_for_all_sizes(Situation situation, const Config& config);

}  // namespace gradientflow::collective

// Selection of the path of a call. Pure: all ranks have the same information, and so make the same choice. path.hpp
// describes the paths; device_selector.hpp selects for CUDA devices.
#pragma once

#include <cstddef>
#include <vector>

#include "../../base/config.hpp"
#include "../../transport/endpoint.hpp"
#include "../../transport/signature.hpp"
#include "../call/path.hpp"

namespace gradientflow::collective {

// Properties of a call that the selector uses.
struct Situation {
  transport::CallKind kind;
  transport::Algorithm algorithm;
  std::size_t bytes;  // size of the largest input of a rank
  bool wire = false;  // values are rounded between nodes
  int ranks;
  int nodes;
  int smallest_node;                                          // number of ranks of the smallest node
  int largest_node;                                           // number of ranks of the largest node
  bool in_node_memory;                                        // the tensors of all ranks lie in one segment
  bool direct_read_allowed;                                   // the kernel allows direct reads, on every rank
  transport::Transport transport = transport::mpi_transport;  // transport of messages
  bool has_mpi_communicator = true;                           // MPI has a communicator of these ranks
};

// Choice inside a node if the tensors of all ranks lie in one segment, and are not small.
inline constexpr Choice in_one_segment = {Path::node_memory, "all tensors lie in node memory"};

// Throws Error(value) if the requested algorithm does not support the call: an algorithm is never replaced silently.
[[nodiscard]] Choice select(const Situation& situation, const Config& config);

// A choice and its smallest size in bytes.
struct SizeChoice {
  std::size_t from;
  Choice choice;
};

// Returns the choices for all sizes, smallest first. `situation.bytes` is not read.
[[nodiscard]] std::vector<SizeChoice> select_for_all_sizes(Situation situation, const Config& config);

}  // namespace gradientflow::collective

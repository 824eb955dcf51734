// Selection of the path of a call. Pure: the same choice on every rank, because all have the same information.
// The paths are described in path.hpp; device_selector.hpp selects for tensors on CUDA devices.
#pragma once

#include <cstddef>
#include <vector>

#include "../../base/config.hpp"
#include "../../transport/endpoint.hpp"
#include "../../transport/signature.hpp"
#include "../call/path.hpp"

namespace gradientflow::collective {

// The properties of a call that the selector uses.
struct Situation {
  transport::CallKind kind;
  transport::Algorithm algorithm;
  std::size_t bytes;  // the largest input of a rank
  bool wire = false;  // values are rounded between nodes
  int ranks;
  int nodes;
  int smallest_node;  // number of its ranks
  int largest_node;
  bool in_node_memory;                                        // the tensors of all ranks lie in one segment
  bool direct_read_allowed;                                   // by the kernel, on every rank
  transport::Transport transport = transport::mpi_transport;  // of messages between ranks
  bool has_mpi_communicator = true;                           // whether MPI has a communicator of these ranks
};

// The choice inside a node if the tensors of all ranks lie in one segment, and are not small.
inline constexpr Choice in_one_segment = {Path::node_memory, "all tensors lie in node memory"};

// Throws Error(value) if the requested algorithm does not support the call; it is never replaced silently.
[[nodiscard]] Choice select(const Situation& situation, const Config& config);

// The choices for all sizes, smallest first, each with its smallest size in bytes. `situation.bytes` is not read.
struct SizeChoice {
  std::size_t from;
  Choice choice;
};

[[nodiscard]] std::vector<SizeChoice> select_for_all_sizes(Situation situation, const Config& config);

}  // namespace gradientflow::collective

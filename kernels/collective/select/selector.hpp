// Which way a call goes. Pure: the same answer on every rank, from what all ranks know.
// The ways themselves stand in path.hpp, the choice for tensors on CUDA devices in device_selector.hpp.
#pragma once

#include <cstddef>
#include <vector>

#include "../../base/config.hpp"
#include "../../transport/signature.hpp"
#include "../call/path.hpp"

namespace gradientflow::collective {

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

// Inside a node, of all but small tensors, where those of all ranks lie in one segment.
inline constexpr Choice in_one_segment = {Path::node_memory, "all tensors lie in node memory"};

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

// Which way a call goes. Pure: the same answer on every rank, from what all ranks know.
//
//   alone         one rank: a copy at most
//   announcement  small tensors travel inside the announcements
//   node_memory   all tensors lie in one segment of node memory: no copy at all
//   direct        large ordinary arrays, read from the other processes
//   staged        ordinary arrays, through staging slots
//   mpi           the MPI library's own collectives: across nodes, or where the user asks for them
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "../base/config.hpp"
#include "../transport/signature.hpp"

namespace gradientflow::collective {

enum class Path { alone, announcement, node_memory, direct, staged, mpi };

[[nodiscard]] std::string_view name_of(Path path);

// What the selector knows about a call.
struct Situation {
  transport::CallKind kind;
  transport::Algorithm algorithm;
  std::size_t bytes;  // that each rank puts in
  int ranks;
  int nodes;
  bool in_node_memory;       // the tensors of all ranks lie in one segment
  bool direct_read_allowed;  // by the kernel, on every rank
};

// Throws Error(value) where the algorithm asked for cannot serve the call: none silently becomes another.
[[nodiscard]] Path select(const Situation& situation, const Config& config);

}  // namespace gradientflow::collective

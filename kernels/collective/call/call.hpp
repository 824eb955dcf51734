// One collective call of one rank: the signature, which all ranks agree on, and this rank's tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "../../base/dtype.hpp"
#include "../../base/error.hpp"
#include "../../compute/cuda/stream.hpp"
#include "../../compute/kernels.hpp"
#include "../../transport/signature.hpp"
#include "partition.hpp"
#include "path.hpp"

namespace gradientflow::collective {

// Device of a call's tensors, and the stream in which they are ready: work enqueued there after the call sees the
// result.
struct Placement {
  int device;
  compute::cuda::Stream stream;
};

// A call. Elements of `input` and of `output`, for `count` of the signature and P ranks:
//                       input                         output
//   allreduce           count                         count
//   broadcast           count (read on the root)      count (written elsewhere)
//   reduce              count                         count (on the root)
//   allgather           count                         P * count
//   reduce_scatter      count                         block(count, P, rank)
//   alltoall            P * count                     P * count
//   gather              count                         P * count (on the root)
//   scatter             P * count (on the root)       count
//   allgatherv          counts[rank]                  count, the sum of all counts
// input may equal output in allreduce, broadcast and reduce; otherwise they must not overlap. A tensor that is neither
// read nor written may be nullptr.
struct Call {
  transport::Signature signature;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::vector<std::size_t> counts = {};     // allgatherv's counts
  std::optional<Placement> placement = {};  // present if signature.memory is a device's
  std::optional<Choice> choice = {};        // path chosen beforehand, for ordinary arrays in host memory
  std::string label = {};                   // caller's label and a shape, which the ranks compare by a hash

  [[nodiscard]] std::size_t element() const { return size_of(signature.dtype); }
  [[nodiscard]] std::size_t bytes() const { return signature.count * element(); }
  [[nodiscard]] bool sends_messages() const { return choice && !is_inside_node(choice->path); }
};

// Returns the placement of a call on tensors of a device.
[[nodiscard]] inline const Placement& placement_of(const Call& call) {
  if (!call.placement) {
    throw Error(ErrorKind::internal, "a call on tensors of a device does not say where they are");
  }
  return *call.placement;
}

// Returns the number of elements of rank `rank`'s block, or of the tensor if there are no blocks.
[[nodiscard]] inline std::size_t block_count(const transport::Signature& signature,
                                             const std::vector<std::size_t>& counts, int ranks, int rank) {
  const auto index = static_cast<std::size_t>(rank);
  if (!transport::traits_of(signature.kind).counts_all_blocks) {
    return signature.count;
  }
  return counts.empty() ? block(signature.count, static_cast<std::size_t>(ranks), index).size() : counts[index];
}

// Returns the number of elements of the blocks of all ranks together.
[[nodiscard]] inline std::size_t count_of_all(const transport::Signature& signature, int ranks) {
  const bool counted = transport::traits_of(signature.kind).counts_all_blocks;
  return signature.count * (counted ? 1 : static_cast<std::size_t>(ranks));
}

[[nodiscard]] inline std::size_t input_count(const Call& call, int ranks, int rank) {
  const transport::Operand& input = transport::traits_of(call.signature.kind).input;
  if (input.has_all_blocks) {
    return input.is_held(rank == call.signature.root) ? count_of_all(call.signature, ranks) : 0;
  }
  return block_count(call.signature, call.counts, ranks, rank);
}

[[nodiscard]] inline std::size_t output_count(const transport::Signature& signature, int ranks, int rank) {
  const transport::Operand& output = transport::traits_of(signature.kind).output;
  if (output.holder == transport::Holder::root && rank != signature.root) {
    return 0;
  }
  return output.has_all_blocks ? count_of_all(signature, ranks) : block_count(signature, {}, ranks, rank);
}

// Returns the bytes of the largest input of any rank, the same number on all ranks.
[[nodiscard]] inline std::size_t largest_input(const transport::Signature& signature, int ranks) {
  const bool of_blocks = transport::traits_of(signature.kind).input.has_all_blocks;
  return size_of(signature.dtype) * (of_blocks ? count_of_all(signature, ranks) : signature.count);
}

// Returns the offset of rank `rank`'s part in the result of an allgatherv, in elements.
[[nodiscard]] inline std::size_t displacement(const Call& call, std::size_t rank) {
  return std::accumulate(call.counts.begin(), call.counts.begin() + static_cast<std::ptrdiff_t>(rank), std::size_t{0});
}

// Returns a hash (FNV-1a) by which ranks compare data that must be the same.
[[nodiscard]] inline std::uint32_t hash_of(std::span<const std::byte> bytes) {
  std::uint32_t hash = 2166136261U;
  for (const std::byte byte : bytes) {
    hash = (hash ^ static_cast<std::uint32_t>(byte)) * 16777619U;
  }
  return hash;
}
[[nodiscard]] inline std::uint32_t hash_of(const std::vector<std::size_t>& counts) {
  return hash_of(std::as_bytes(std::span(counts)));
}

// The reduction of a result over `ranks` ranks.
[[nodiscard]] inline compute::Reduction reduction(const transport::Signature& signature, int ranks,
                                                  compute::Store store) {
  return {signature.dtype, signature.op, signature.op == ReduceOp::mean ? ranks : 1, store};
}

}  // namespace gradientflow::collective

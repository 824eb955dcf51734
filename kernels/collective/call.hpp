// One collective call of one rank: what all ranks agree on, and where this rank's tensors are.
#pragma once

#include <cstddef>

#include "../base/dtype.hpp"
#include "../compute/kernels.hpp"
#include "../transport/signature.hpp"

namespace gradientflow::collective {

// The number of elements in `output`, for `count` in the signature and P ranks:
//   allreduce, broadcast, reduce   count (reduce: on the root; elsewhere output is not touched)
//   allgather                      P * count
//   reduce_scatter                 block(count, P, rank)
// input may equal output in allreduce, broadcast and reduce; otherwise they must not overlap.
struct Call {
  transport::Signature signature;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;

  [[nodiscard]] std::size_t element() const { return size_of(signature.dtype); }
  [[nodiscard]] std::size_t bytes() const { return signature.count * element(); }
};

// How a result over `ranks` ranks is computed.
[[nodiscard]] inline compute::Reduction reduction(const transport::Signature& signature, int ranks,
                                                  compute::Store store) {
  return {signature.dtype, signature.op, signature.op == ReduceOp::mean ? ranks : 1, store};
}

}  // namespace gradientflow::collective

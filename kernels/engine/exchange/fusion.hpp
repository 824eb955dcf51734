// Which tensors of a gradient pool travel together (GradientFlow paper, section 3.1: lazy allreduce).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace gradientflow::engine {

struct TensorRange {  // from tensor `begin` up to and without tensor `end`
  std::size_t begin;
  std::size_t end;
};

// Tensors are put together in the order in which they lie in memory, until they have `threshold` bytes or more; what is
// left over is a range, too. The ranges depend on nothing else, so all ranks have the same. No range is without bytes,
// unless all tensors are: then there is none.
[[nodiscard]] std::vector<TensorRange> fuse(std::span<const std::size_t> bytes, std::size_t threshold);

}  // namespace gradientflow::engine

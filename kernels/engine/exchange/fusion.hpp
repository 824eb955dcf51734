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

// Fuses tensors, in the order in which they lie in memory, into ranges of `threshold` bytes or more; the last range may
// have fewer. The ranges depend on nothing else, so all ranks have the same. No range has 0 bytes: if all tensors have,
// there are no ranges.
[[nodiscard]] std::vector<TensorRange> fuse(std::span<const std::size_t> bytes, std::size_t threshold);

}  // namespace gradientflow::engine

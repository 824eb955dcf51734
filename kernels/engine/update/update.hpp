// Input of a step, as plain data: gradients side by side in memory of the host or of a CUDA device, and the elements
// that count. Exchanges make updates; optimizers take them, and do not depend on any exchange.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "../../base/dtype.hpp"
#include "means.hpp"

namespace gradientflow::engine {

struct Update {
  struct Span {  // elements `begin` up to and without `end` of the memory
    std::size_t begin;
    std::size_t end;
  };

  Means means;
  const std::byte* data;
  DType dtype;
  std::optional<int> device;
  std::vector<std::size_t> offsets;  // start of each tensor, in elements; then the end of the last
  std::vector<Span> spans;           // sorted and disjoint
  // On the host: the memory, in the same layout, of each rank of the node, this one included; the step takes the mean
  // of their gradients. Empty: the gradients at `data` are used.
  std::vector<const std::byte*> of_ranks = {};

  [[nodiscard]] std::size_t tensors() const { return offsets.size() - 1; }
  void limit(Span elements);  // restricts the spans to these elements
};

// Throws Error(value) unless a pool holds averaged gradients. `ready`: number of the pool's `tensors` that are already
// ready for the next iteration.
void check_has_means(Means means, std::size_t ready, std::size_t tensors);

}  // namespace gradientflow::engine

// Plan of a top-k pool: the sent share of each layer, and its message. Pure functions of numbers that are the same on
// all ranks, so all ranks have the same plan.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "../../base/dtype.hpp"
#include "../../compute/top_k.hpp"
#include "fusion.hpp"

namespace gradientflow::engine {

// Consecutive tensors from which entries are selected together.
struct TopKLayer {
  TensorRange tensors;
  std::size_t begin = 0;     // start in memory, in elements
  std::size_t count = 0;     // elements there, with the padding between its tensors
  std::size_t elements = 0;  // without padding

  // Set by plan_top_k():
  double ratio = 1.0;
  std::size_t k = 0;
  bool dense = false;  // the whole layer is averaged, in place
  compute::EntryBlock block{};
  std::size_t data = 0;  // start of its block in the memory for blocks, in bytes
  std::size_t message = 0;
};

// Layers that travel together: their blocks, side by side; or the gradients of dense layers.
struct TopKMessage {
  std::size_t begin = 0;  // layers, up to and without `end`
  std::size_t end = 0;
  bool dense = false;
  std::size_t data = 0;  // start of its blocks in the memory for blocks
  std::size_t bytes = 0;
};

struct TopKPlan {
  std::vector<TopKLayer> layers;
  std::vector<TopKMessage>
      messages;             // messages in the order of layers; the last one has blocks, and ends with a trailer
  std::size_t trailer = 0;  // start of the trailer in the memory for blocks
  std::size_t bytes = 0;    // size of the memory for blocks
};

struct TopKRules {
  std::size_t ranks;
  DType gradients;
  DType values;             // dtype of the values in blocks
  std::size_t merge_bytes;  // least bytes of a message, unless it ends with the last layer
  std::size_t trailer_bytes;
};

// Returns ceil(elements / ratio), tolerant of a rounding error in the ratio, such as that of 1 / density; at least 1 if
// there are elements.
[[nodiscard]] std::size_t k_of(std::size_t elements, double ratio);

// Returns the layers of tensors with these counts and offsets, in elements. `together`: number of tensors of each
// layer; empty: one tensor per layer. Throws Error(value) if these numbers do not add up to all tensors, or if a layer
// has 2^32 elements or more.
[[nodiscard]] std::vector<TopKLayer> lay_out_layers(std::span<const std::size_t> counts,
                                                    std::span<const std::size_t> offsets,
                                                    std::span<const std::size_t> together);

// Returns the plan. `ratios`: one for each layer, or one for all. Throws Error(value) for another number of ratios, or
// for a ratio that is not finite and 1 or more.
[[nodiscard]] TopKPlan plan_top_k(std::vector<TopKLayer> layers, std::span<const double> ratios,
                                  const TopKRules& rules);

}  // namespace gradientflow::engine

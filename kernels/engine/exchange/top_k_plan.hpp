// How much of each layer is sent, and in which message. Pure functions of numbers that are the same on all ranks, so
// all ranks have the same plan.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "../../base/dtype.hpp"
#include "../../compute/top_k.hpp"
#include "fusion.hpp"

namespace gradientflow::engine {

// Consecutive tensors that are selected from together.
struct TopKLayer {
  TensorRange tensors;
  std::size_t begin = 0;     // in memory, in elements
  std::size_t count = 0;     // elements there, with the padding between its tensors
  std::size_t elements = 0;  // without padding

  // For a ratio:
  double ratio = 1.0;
  std::size_t k = 0;
  bool dense = false;  // all of it is averaged, in place
  compute::EntryBlock block{};
  std::size_t data = 0;  // where its block begins in the memory for blocks, in bytes
  std::size_t message = 0;
};

// Layers that travel together: their blocks, side by side; or the gradients of layers that are dense.
struct TopKMessage {
  std::size_t begin = 0;  // layers, up to and without `end`
  std::size_t end = 0;
  bool dense = false;
  std::size_t data = 0;  // of blocks: where they begin in the memory for blocks
  std::size_t bytes = 0;
};

struct TopKPlan {
  std::vector<TopKLayer> layers;
  std::vector<TopKMessage> messages;  // in the order of layers; the last one is of blocks, and ends with a trailer
  std::size_t trailer = 0;            // where that begins in the memory for blocks
  std::size_t bytes = 0;              // of the memory for blocks
};

struct TopKRules {
  std::size_t ranks;
  DType gradients;
  DType values;             // of the values in blocks
  std::size_t merge_bytes;  // a message has so many or more, or ends with the last layer
  std::size_t trailer_bytes;
};

// ceil(elements / ratio), tolerant of a rounding error in the ratio, such as that of 1 / density; at least 1 if there
// are elements.
[[nodiscard]] std::size_t k_of(std::size_t elements, double ratio);

// The layers of tensors with so many elements at these offsets, in elements: `together` says how many tensors each has,
// one each where it is empty. Throws Error(value) if these do not add up to all tensors, or if a layer has 2^32
// elements or more.
[[nodiscard]] std::vector<TopKLayer> lay_out_layers(std::span<const std::size_t> counts,
                                                    std::span<const std::size_t> offsets,
                                                    std::span<const std::size_t> together);

// `ratios`: one for each layer, or one for all. Throws Error(value) for another number of them, or for one that is not
// finite and 1 or more.
[[nodiscard]] TopKPlan plan_top_k(std::vector<TopKLayer> layers, std::span<const double> ratios,
                                  const TopKRules& rules);

}  // namespace gradientflow::engine

// The kernels of the optimisers: the step of momentum SGD, which is also that of LARS, and the norms that LARS needs.
//
// Gradients are float16, bfloat16 or float32; weights and momentum are float32. Without fused multiply-add, so that the
// bits are the same at every SIMD level and on every device. No pointer needs an alignment beyond that of its elements;
// different pointers of one call do not overlap. Counts may be 0.
#pragma once

#include <cstddef>

#include "../base/dtype.hpp"
#include "simd.hpp"
#include "store.hpp"

namespace gradientflow::compute {

// direction = gradient * gradient_scale + weight_decay * weight
// momentum = factor * momentum + inner_rate * direction
// weight = weight - outer_rate * momentum, and parameter = weight, rounded to nearest even
// With the learning rate inside (as in the paper) inner_rate is the rate and outer_rate 1; outside (as in PyTorch) it
// is the other way round. Without momentum, inner_rate * direction takes its place in the last line.
struct MomentumStep {
  float* weight;
  void* parameter;        // a copy of the weights in `parameter_dtype`, of 16 bits; or nullptr
  DType parameter_dtype;  // read only where `parameter` is not nullptr
  const void* gradient;
  DType gradient_dtype;
  float* momentum;  // nullptr: without
  std::size_t count;
  float gradient_scale = 1.0F;
  float weight_decay = 0.0F;
  float factor = 0.0F;
  float inner_rate = 1.0F;
  float outer_rate = 1.0F;
  const float* before = nullptr;  // where the weights are read; nullptr: at `weight`
  Store store = Store::cached;    // of the weights; streaming needs them at a cache line, and another `before`
};
void momentum_step(const MomentumStep& call);

// The sum of the squares of `count` values of float16, bfloat16 or float32, each times `scale`; added up as the L1 norm
// of chunks.hpp is.
[[nodiscard]] double sum_of_squares(const void* source, DType dtype, std::size_t count, float scale = 1.0F);

void momentum_step_at(SimdLevel level, const MomentumStep& call);
[[nodiscard]] double sum_of_squares_at(SimdLevel level, const void* source, DType dtype, std::size_t count,
                                       float scale);

}  // namespace gradientflow::compute

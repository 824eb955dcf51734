// The kernel of Adam, one pass over memory.
//
// Gradients are float16, bfloat16 or float32; all else is float32. Without fused multiply-add, so that the bits are the
// same at every SIMD level and on every device. No pointer needs an alignment beyond that of its elements; different
// pointers of one call do not overlap. Counts may be 0.
#pragma once

#include <cstddef>

#include "../base/dtype.hpp"
#include "simd.hpp"

namespace gradientflow::compute {

// g = gradient * gradient_scale + weight_decay * weight
// mean = beta_1 * mean + alpha_1 * g; mean_square = beta_2 * mean_square + alpha_2 * g * g
// weight = keep * weight - rate * mean / (sqrt(mean_square) / root + epsilon), and parameter = weight, rounded to
// nearest even. AdamW has its weight decay in `keep`, Adam in g.
struct AdamStep {
  float* weight;
  void* parameter;        // a copy of the weights in `parameter_dtype`, of 16 bits; or nullptr
  DType parameter_dtype;  // read only where `parameter` is not nullptr
  const void* gradient;
  DType gradient_dtype;
  float* mean;
  float* mean_square;
  std::size_t count;
  float gradient_scale = 1.0F;
  float weight_decay = 0.0F;
  float rate = 1e-3F;  // divided by 1 - beta_1^t in the t-th update
  float root = 1.0F;   // sqrt(1 - beta_2^t)
  float beta_1 = 0.9F;
  float alpha_1 = 0.1F;  // 1 - beta_1, computed before rounding to float32
  float beta_2 = 0.999F;
  float alpha_2 = 0.001F;
  float epsilon = 1e-8F;
  float keep = 1.0F;              // 1 - learning rate * weight decay of AdamW
  const float* before = nullptr;  // where the weights are read; nullptr: at `weight`
};
void adam_step(const AdamStep& call);

void adam_step_at(SimdLevel level, const AdamStep& call);

}  // namespace gradientflow::compute

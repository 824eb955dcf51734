// The kernels of the local updates of a worker's own weights, made while it does not wait for the parameter servers
// (SSD-SGD paper, section 3.2): GLU, and delay compensation (DC-ASGD-a). Plain SGD is momentum_step of
// optimizer_steps.hpp without momentum. Each is one pass over memory.
//
// Gradients are float16, bfloat16 or float32; all else is float32. Without fused multiply-add, so that the bits are the
// same at every SIMD level and on every device. No pointer needs an alignment beyond that of its elements; different
// pointers of one call do not overlap. Counts may be 0.
#pragma once

#include <cstddef>

#include "../base/dtype.hpp"
#include "simd.hpp"

namespace gradientflow::compute {

// global = (pre_weight - weight) * global_scale, the gradient to which the servers' last rounds amount
// direction = alpha * (gradient * gradient_scale) + weight_decay * weight + beta * global
// pre_weight = weight where `refreshes`; weight = weight - rate * direction
struct GluStep {
  float* weight;
  float* pre_weight;  // written only where `refreshes`
  const void* gradient;
  DType gradient_dtype;
  std::size_t count;
  bool refreshes = false;
  float rate = 1.0F;
  float gradient_scale = 1.0F;
  float weight_decay = 0.0F;
  float alpha = 2.0F;
  float beta = 0.5F;
  float global_scale = 0.0F;  // (1 - momentum) / (rate of the servers * k)
};
void glu_step(const GluStep& call);

// g = gradient * gradient_scale; squares = g * g
// mean_square = decay * mean_square + (1 - decay) * squares; lambda = lambda_0 / sqrt(mean_square + epsilon)
// direction = g + lambda * squares * (weight - gradient_weight) + weight_decay * weight
// weight = weight - rate * direction
struct DcStep {
  float* weight;
  float* mean_square;
  const float* gradient_weight;  // the weights of the gradient; nullptr: `weight`, nothing to compensate
  const void* gradient;
  DType gradient_dtype;
  std::size_t count;
  float rate = 1.0F;
  float gradient_scale = 1.0F;
  float weight_decay = 0.0F;
  float lambda_0 = 2.0F;
  float decay = 0.95F;
  float epsilon = 1e-7F;
};
void dc_step(const DcStep& call);

void glu_step_at(SimdLevel level, const GluStep& call);
void dc_step_at(SimdLevel level, const DcStep& call);

}  // namespace gradientflow::compute

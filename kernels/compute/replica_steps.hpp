// The kernels of HPSGD (HPSGD paper, algorithms 2 and 3): a training step on a replica, which adds up gradients, and
// the end of a round. Each is one pass over memory.
//
// Gradients are float16, bfloat16 or float32; all else is float32. Without fused multiply-add, so that the bits are the
// same at every SIMD level and on every device. No pointer needs an alignment beyond that of its elements; different
// pointers of one call do not overlap. Counts may be 0.
#pragma once

#include <cstddef>

#include "../base/dtype.hpp"
#include "simd.hpp"

namespace gradientflow::compute {

// direction = gradient * gradient_scale + weight_decay * weight
// sum = sum + direction; before = weight, where there is one; weight = weight - rate * direction
struct ReplicaStep {
  float* weight;
  float* before;  // or nullptr
  float* sum;
  const void* gradient;
  DType gradient_dtype;
  std::size_t count;
  float rate = 1.0F;
  float gradient_scale = 1.0F;
  float weight_decay = 0.0F;
};
void replica_step(const ReplicaStep& call);

// sum = sum + gradient * gradient_scale + weight_decay * weight, where there is a gradient
// base = before, where there is one, or else weight
// weight = base - rate * mean, and mean = 0, where there is a mean; otherwise weight = base
struct RoundStep {
  float* weight;
  const float* before;   // or nullptr
  float* mean;           // or nullptr
  float* sum;            // read and written where there is a gradient
  const void* gradient;  // or nullptr
  DType gradient_dtype;
  std::size_t count;
  float rate = 1.0F;
  float gradient_scale = 1.0F;
  float weight_decay = 0.0F;
};
void round_step(const RoundStep& call);

void replica_step_at(SimdLevel level, const ReplicaStep& call);
void round_step_at(SimdLevel level, const RoundStep& call);

}  // namespace gradientflow::compute

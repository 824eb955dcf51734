// The step of Adam and AdamW.
#pragma once

#include "step.hpp"

namespace gradientflow::compute {

// g = gradient * gradient_scale + weight_decay * weight
// mean = beta_1 * mean + alpha_1 * g; mean_square = beta_2 * mean_square + alpha_2 * g * g
// weight = keep * weight - rate * mean / (sqrt(mean_square) / root + epsilon)
// AdamW has its weight decay in `keep`, Adam in g.
struct AdamStep {
  float* weight;
  void* parameter;
  DType parameter_dtype;
  const void* gradient;
  DType gradient_dtype;
  float* mean;
  float* mean_square;
  std::size_t count;
  float gradient_scale = 1.0F;
  float weight_decay = 0.0F;
  float rate = 1e-3F;  // learning rate, divided by 1 - beta_1^t in the t-th update
  float root = 1.0F;   // sqrt(1 - beta_2^t)
  float beta_1 = 0.9F;
  float alpha_1 = 0.1F;  // 1 - beta_1, computed before rounding to float32
  float beta_2 = 0.999F;
  float alpha_2 = 0.001F;
  float epsilon = 1e-8F;
  float keep = 1.0F;              // 1 - learning rate * weight decay of AdamW
  const float* before = nullptr;  // address where the weights are read; nullptr: `weight`

  enum : unsigned { weights, means, mean_squares, arrays };
  enum : unsigned { variants = 1 };

  GRADIENTFLOW_STEP static unsigned variant() { return 0; }
  GRADIENTFLOW_STEP static constexpr Access access(unsigned /*variant*/) { return {0b111, 0b111}; }
  GRADIENTFLOW_STEP StepMemory<arrays> memory() const {
    return {{before == nullptr ? weight : before, mean, mean_square}, {weight, mean, mean_square}};
  }
  template <class Math, class V>
  GRADIENTFLOW_STEP void apply(unsigned /*variant*/, V raw_gradient, V (&x)[arrays]) const {
    const V g = raw_gradient * gradient_scale + weight_decay * x[weights];
    x[means] = Math::canonical_nan(beta_1 * x[means] + alpha_1 * g);
    x[mean_squares] = Math::canonical_nan(beta_2 * x[mean_squares] + alpha_2 * g * g);
    const V step = rate * x[means] / (Math::square_root(x[mean_squares]) / root + epsilon);
    x[weights] = Math::canonical_nan(keep * x[weights] - step);
  }
};

}  // namespace gradientflow::compute

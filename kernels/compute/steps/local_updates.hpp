// Local updates that a worker makes to its own weights without waiting for the parameter servers (SSD-SGD paper,
// section 3.2): GLU, and delay compensation (DC-ASGD-a). Plain SGD is the step of momentum.hpp without momentum.
#pragma once

#include "step.hpp"

namespace gradientflow::compute {

// global = (pre_weight - weight) * global_scale, the gradient that is equivalent to the servers' last rounds
// direction = alpha * (gradient * gradient_scale) + weight_decay * weight + beta * global
// pre_weight = weight if `refreshes`; weight = weight - rate * direction
struct GluStep {
  float* weight;
  float* pre_weight;  // written only if `refreshes`
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

  enum : unsigned { weights, pre_weights, arrays };
  enum : unsigned { plain, refreshing, variants };

  GRADIENTFLOW_STEP unsigned variant() const { return refreshes ? refreshing : plain; }
  GRADIENTFLOW_STEP static constexpr Access access(unsigned variant) {
    return variant == refreshing ? Access{0b11, 0b11} : Access{0b11, 0b01};
  }
  GRADIENTFLOW_STEP StepMemory<arrays> memory() const { return {{weight, pre_weight}, {weight, pre_weight}}; }
  template <class Math, class V>
  GRADIENTFLOW_STEP void apply(unsigned /*variant*/, V raw_gradient, V (&x)[arrays]) const {
    const V global = (x[pre_weights] - x[weights]) * global_scale;
    const V direction = alpha * (raw_gradient * gradient_scale) + weight_decay * x[weights] + beta * global;
    x[pre_weights] = x[weights];
    x[weights] = Math::canonical_nan(x[weights] - rate * direction);
  }
};

// g = gradient * gradient_scale; squares = g * g
// mean_square = decay * mean_square + (1 - decay) * squares; lambda = lambda_0 / sqrt(mean_square + epsilon)
// direction = g + lambda * squares * (weight - gradient_weight) + weight_decay * weight
// weight = weight - rate * direction
struct DcStep {
  float* weight;
  float* mean_square;
  const float* gradient_weight;  // weights of the gradient; nullptr: `weight`, nothing to compensate
  const void* gradient;
  DType gradient_dtype;
  std::size_t count;
  float rate = 1.0F;
  float gradient_scale = 1.0F;
  float weight_decay = 0.0F;
  float lambda_0 = 2.0F;
  float decay = 0.95F;
  float epsilon = 1e-7F;

  enum : unsigned { weights, mean_squares, gradient_weights, arrays };
  enum : unsigned { plain, compensating, variants };

  GRADIENTFLOW_STEP unsigned variant() const { return gradient_weight == nullptr ? plain : compensating; }
  GRADIENTFLOW_STEP static constexpr Access access(unsigned variant) {
    return variant == compensating ? Access{0b111, 0b011} : Access{0b011, 0b011};
  }
  GRADIENTFLOW_STEP StepMemory<arrays> memory() const {
    return {{weight, mean_square, gradient_weight}, {weight, mean_square, nullptr}};
  }
  template <class Math, class V>
  GRADIENTFLOW_STEP void apply(unsigned variant, V raw_gradient, V (&x)[arrays]) const {
    const V g = raw_gradient * gradient_scale;
    const V squares = g * g;
    x[mean_squares] = Math::canonical_nan(decay * x[mean_squares] + (1.0F - decay) * squares);
    V direction = g;
    if (variant == compensating) {
      const V lambda = lambda_0 / Math::square_root(x[mean_squares] + epsilon);
      direction += lambda * squares * (x[weights] - x[gradient_weights]);
    }
    direction += weight_decay * x[weights];
    x[weights] = Math::canonical_nan(x[weights] - rate * direction);
  }
};

}  // namespace gradientflow::compute

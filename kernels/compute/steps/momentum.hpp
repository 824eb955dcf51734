// The step of momentum SGD and of LARS.
#pragma once

#include "../store.hpp"
#include "step.hpp"

namespace gradientflow::compute {

// direction = gradient * gradient_scale + weight_decay * weight
// momentum = factor * momentum + inner_rate * direction
// weight = weight - outer_rate * momentum
// With the learning rate inside (as in the paper), inner_rate is the learning rate, and outer_rate is 1; with the
// learning rate outside (as in PyTorch), outer_rate is the learning rate, and inner_rate is 1. Without momentum,
// inner_rate * direction replaces momentum in the last line.
struct MomentumStep {
  float* weight;
  void* parameter;
  DType parameter_dtype;
  const void* gradient;
  DType gradient_dtype;
  float* momentum;  // nullptr: no momentum
  std::size_t count;
  float gradient_scale = 1.0F;
  float weight_decay = 0.0F;
  float factor = 0.0F;
  float inner_rate = 1.0F;
  float outer_rate = 1.0F;
  const float* before = nullptr;  // address where the weights are read; nullptr: `weight`
  Store store = Store::cached;  // target of the weights; streaming needs them at a cache line, and a separate `before`

  enum : unsigned { weights, momenta, arrays };
  enum : unsigned { plain, with_momentum, variants };

  GRADIENTFLOW_STEP unsigned variant() const { return momentum == nullptr ? plain : with_momentum; }
  GRADIENTFLOW_STEP static constexpr Access access(unsigned variant) {
    return variant == plain ? Access{0b01, 0b01} : Access{0b11, 0b11};
  }
  GRADIENTFLOW_STEP StepMemory<arrays> memory() const {
    return {{before == nullptr ? weight : before, momentum}, {weight, momentum}};
  }
  template <class Math, class V>
  GRADIENTFLOW_STEP void apply(unsigned variant, V raw_gradient, V (&x)[arrays]) const {
    const V direction = raw_gradient * gradient_scale + weight_decay * x[weights];
    V step = inner_rate * direction;
    if (variant == with_momentum) {
      step = Math::canonical_nan(factor * x[momenta] + step);
      x[momenta] = step;
    }
    x[weights] = Math::canonical_nan(x[weights] - outer_rate * step);
  }
};

}  // namespace gradientflow::compute

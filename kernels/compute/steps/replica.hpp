// Steps of HPSGD (HPSGD paper, algorithms 2 and 3): a training step on a replica, which also adds up gradients; and the
// end of a round.
#pragma once

#include "step.hpp"

namespace gradientflow::compute {

// direction = gradient * gradient_scale + weight_decay * weight
// sum = sum + direction; before = weight, if it is given; weight = weight - rate * direction
struct ReplicaStep {
  float* weight;
  float* before;  // may be nullptr
  float* sum;
  const void* gradient;
  DType gradient_dtype;
  std::size_t count;
  float rate = 1.0F;
  float gradient_scale = 1.0F;
  float weight_decay = 0.0F;

  enum : unsigned { weights, sums, befores, arrays };
  enum : unsigned { plain, keeping, variants };

  GRADIENTFLOW_STEP unsigned variant() const { return before == nullptr ? plain : keeping; }
  GRADIENTFLOW_STEP static constexpr Access access(unsigned variant) {
    return variant == keeping ? Access{0b011, 0b111} : Access{0b011, 0b011};
  }
  GRADIENTFLOW_STEP StepMemory<arrays> memory() const { return {{weight, sum, nullptr}, {weight, sum, before}}; }
  template <class Math, class V>
  GRADIENTFLOW_STEP void apply(unsigned /*variant*/, V raw_gradient, V (&x)[arrays]) const {
    const V direction = raw_gradient * gradient_scale + weight_decay * x[weights];
    x[sums] = Math::canonical_nan(x[sums] + direction);
    x[befores] = x[weights];
    x[weights] = Math::canonical_nan(x[weights] - rate * direction);
  }
};

// sum = sum + gradient * gradient_scale + weight_decay * weight, if there is a gradient
// base = before if it is given, or else weight
// weight = base - rate * mean, and mean = 0, if there is a mean; otherwise weight = base
struct RoundStep {
  float* weight;
  const float* before;   // may be nullptr
  float* mean;           // may be nullptr
  float* sum;            // read and written if there is a gradient
  const void* gradient;  // may be nullptr
  DType gradient_dtype;
  std::size_t count;
  float rate = 1.0F;
  float gradient_scale = 1.0F;
  float weight_decay = 0.0F;

  enum : unsigned { weights, befores, means, sums, arrays };
  static constexpr unsigned has_before = 1;  // first of the bits of a variant
  static constexpr unsigned has_mean = 2;
  static constexpr unsigned has_gradient = 4;
  static constexpr unsigned variants = 8;

  GRADIENTFLOW_STEP unsigned variant() const {
    return (before == nullptr ? 0U : has_before) | (mean == nullptr ? 0U : has_mean) |
           (gradient == nullptr ? 0U : has_gradient);
  }
  GRADIENTFLOW_STEP static constexpr Access access(unsigned variant) {
    const unsigned optional =
        ((variant & has_mean) != 0 ? 1U << means : 0U) | ((variant & has_gradient) != 0 ? 1U << sums : 0U);
    return {1U << weights | ((variant & has_before) != 0 ? 1U << befores : 0U) | optional,
            ((variant & (has_before | has_mean)) != 0 ? 1U << weights : 0U) | optional, (variant & has_gradient) != 0};
  }
  GRADIENTFLOW_STEP StepMemory<arrays> memory() const {
    return {{weight, before, mean, sum}, {weight, nullptr, mean, sum}};
  }
  template <class Math, class V>
  GRADIENTFLOW_STEP void apply(unsigned variant, V raw_gradient, V (&x)[arrays]) const {
    if ((variant & has_gradient) != 0) {
      x[sums] = Math::canonical_nan(x[sums] + (raw_gradient * gradient_scale + weight_decay * x[weights]));
    }
    if ((variant & has_before) != 0) {
      x[weights] = x[befores];
    }
    if ((variant & has_mean) != 0) {
      x[weights] = Math::canonical_nan(x[weights] - rate * x[means]);
      x[means] = V{};
    }
  }
};

}  // namespace gradientflow::compute

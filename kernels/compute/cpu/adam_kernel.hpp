// The step of Adam: see adam_step.hpp.
#pragma once

#include "../adam_step.hpp"
#include "local_update_kernel.hpp"
#include "momentum_kernel.hpp"

namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE {
namespace {

// The memory of a call, from its first element on.
struct AdamMemory {
  const std::byte* before;
  std::byte* weight;
  std::byte* parameter;
  const std::byte* gradient;
  std::byte* mean;
  std::byte* mean_square;
};

template <class Gradient, class Parameter>
[[gnu::always_inline]] inline void adam_at(const AdamStep& call, const AdamMemory& memory, std::size_t i) {
  std::byte* const weight = memory.weight + i * sizeof(float);
  std::byte* const mean = memory.mean + i * sizeof(float);
  std::byte* const mean_square = memory.mean_square + i * sizeof(float);
  const Floats old_weight = load<Floats>(memory.before + i * sizeof(float));
  const Floats g = Gradient::load_ordered(memory.gradient + i * Gradient::size) * call.gradient_scale +
                   call.weight_decay * old_weight;
  const Floats new_mean = canonical_nan(call.beta_1 * load<Floats>(mean) + call.alpha_1 * g);
  const Floats new_square = canonical_nan(call.beta_2 * load<Floats>(mean_square) + call.alpha_2 * g * g);
  const Floats step = call.rate * new_mean / (square_root(new_square) / call.root + call.epsilon);
  const Floats new_weight = canonical_nan(call.keep * old_weight - step);
  store<false>(mean, new_mean);
  store<false>(mean_square, new_square);
  store<false>(weight, new_weight);
  Parameter::store_ordered(memory.parameter + i * Parameter::size, new_weight);
}

template <class Gradient, class Parameter>
void adam_step(const AdamStep& step) {
  const AdamStep call = step;  // a copy, which no store can change
  const AdamMemory memory{reinterpret_cast<const std::byte*>(call.before == nullptr ? call.weight : call.before),
                          reinterpret_cast<std::byte*>(call.weight),
                          static_cast<std::byte*>(call.parameter),
                          static_cast<const std::byte*>(call.gradient),
                          reinterpret_cast<std::byte*>(call.mean),
                          reinterpret_cast<std::byte*>(call.mean_square)};
  std::size_t i = 0;
  for (; call.count - i >= lanes; i += lanes) {
    adam_at<Gradient, Parameter>(call, memory, i);
  }
  if (const std::size_t rest = call.count - i; rest != 0) {
    const PaddedRow<sizeof(float)> before(memory.before, i, rest);
    PaddedRow<sizeof(float)> weight;
    PaddedRow<sizeof(float)> parameter;
    const PaddedRow<Gradient::size> gradient(memory.gradient, i, rest);
    PaddedRow<sizeof(float)> mean(memory.mean, i, rest);
    PaddedRow<sizeof(float)> mean_square(memory.mean_square, i, rest);
    adam_at<Gradient, Parameter>(
        call, {before.bytes, weight.bytes, parameter.bytes, gradient.bytes, mean.bytes, mean_square.bytes}, 0);
    weight.save(memory.weight, i, rest);
    mean.save(memory.mean, i, rest);
    mean_square.save(memory.mean_square, i, rest);
    if constexpr (Parameter::size != 0) {
      std::memcpy(memory.parameter + i * Parameter::size, parameter.bytes, rest * Parameter::size);
    }
  }
}

}  // namespace
}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE

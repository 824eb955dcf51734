// The step of momentum SGD: see optimizer_steps.hpp.
#pragma once

#include "../optimizer_steps.hpp"
#include "element.hpp"

namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE {
namespace {

// Stands for the parameter where there is no copy of the weights.
struct NoCopy {
  static constexpr std::size_t size = 0;

  [[gnu::always_inline]] static void store_ordered(std::byte* /*address*/, Floats /*values*/) {}
};

struct Rates {
  float gradient_scale;
  float weight_decay;
  float factor;
  float inner;
  float outer;
};

// Blocks of `width` vectors from element `begin` on, as long as they end by `end`. Returns where it stopped.
template <class Gradient, class Parameter, bool has_momentum, bool streaming, std::size_t width>
inline std::size_t step_blocks(const std::byte* before, std::byte* weight, std::byte* parameter,
                               const std::byte* gradient, std::byte* momentum, std::size_t begin, std::size_t end,
                               const Rates& rates) {
  std::size_t i = begin;
  for (; end - i >= width * lanes; i += width * lanes) {
    for (std::size_t v = 0; v < width; ++v) {
      const std::size_t at = i + v * lanes;
      const Floats old_weight = load<Floats>(before + at * sizeof(float));
      const Floats direction = Gradient::load_ordered(gradient + at * Gradient::size) * rates.gradient_scale +
                               rates.weight_decay * old_weight;
      Floats step = rates.inner * direction;
      if constexpr (has_momentum) {
        step = canonical_nan(rates.factor * load<Floats>(momentum + at * sizeof(float)) + step);
        store<false>(momentum + at * sizeof(float), step);
      }
      const Floats new_weight = canonical_nan(old_weight - rates.outer * step);
      store<streaming>(weight + at * sizeof(float), new_weight);
      Parameter::store_ordered(parameter + at * Parameter::size, new_weight);
    }
  }
  return i;
}

template <class Gradient, class Parameter, bool has_momentum, bool streaming>
inline void step(const MomentumStep& call) {
  const Rates rates{call.gradient_scale, call.weight_decay, call.factor, call.inner_rate, call.outer_rate};
  auto* const weight = reinterpret_cast<std::byte*>(call.weight);
  const auto* const before = call.before == nullptr ? weight : reinterpret_cast<const std::byte*>(call.before);
  auto* const parameter = static_cast<std::byte*>(call.parameter);
  const auto* const gradient = static_cast<const std::byte*>(call.gradient);
  auto* const momentum = reinterpret_cast<std::byte*>(call.momentum);
  constexpr auto blocks_of_four = step_blocks<Gradient, Parameter, has_momentum, streaming, 4>;
  constexpr auto vectors = step_blocks<Gradient, Parameter, has_momentum, streaming, 1>;
  constexpr auto padded_vector = step_blocks<Gradient, Parameter, has_momentum, false, 1>;
  std::size_t i = blocks_of_four(before, weight, parameter, gradient, momentum, 0, call.count, rates);
  i = vectors(before, weight, parameter, gradient, momentum, i, call.count, rates);
  if (const std::size_t rest = call.count - i; rest != 0) {
    std::byte padded_weight[vector_bytes] = {};
    std::byte padded_parameter[vector_bytes];
    std::byte padded_gradient[vector_bytes] = {};
    std::byte padded_momentum[vector_bytes] = {};
    std::memcpy(padded_weight, before + i * sizeof(float), rest * sizeof(float));
    std::memcpy(padded_gradient, gradient + i * Gradient::size, rest * Gradient::size);
    if constexpr (has_momentum) {
      std::memcpy(padded_momentum, momentum + i * sizeof(float), rest * sizeof(float));
    }
    padded_vector(padded_weight, padded_weight, padded_parameter, padded_gradient, padded_momentum, 0, lanes, rates);
    std::memcpy(weight + i * sizeof(float), padded_weight, rest * sizeof(float));
    if constexpr (Parameter::size != 0) {
      std::memcpy(parameter + i * Parameter::size, padded_parameter, rest * Parameter::size);
    }
    if constexpr (has_momentum) {
      std::memcpy(momentum + i * sizeof(float), padded_momentum, rest * sizeof(float));
    }
  }
  if constexpr (streaming) {
    streaming_fence();
  }
}

template <class Gradient, class Parameter>
void momentum_step(const MomentumStep& call) {
  const bool streams = call.store == Store::streaming && call.before != nullptr && call.before != call.weight &&
                       reinterpret_cast<std::uintptr_t>(call.weight) % cache_line == 0;
  if (call.momentum != nullptr) {
    streams ? step<Gradient, Parameter, true, true>(call) : step<Gradient, Parameter, true, false>(call);
  } else {
    streams ? step<Gradient, Parameter, false, true>(call) : step<Gradient, Parameter, false, false>(call);
  }
}

}  // namespace
}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE

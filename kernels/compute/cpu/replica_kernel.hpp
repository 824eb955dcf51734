// The steps of HPSGD: see replica_steps.hpp.
#pragma once

#include "../replica_steps.hpp"
#include "norm_kernel.hpp"

namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE {
namespace {

// The memory of a call, from its first element on; any of it but the weights may be nullptr.
struct RoundMemory {
  std::byte* weight;
  std::byte* kept;        // `before`, written by the first step of a round
  const std::byte* base;  // `before`, read at its end
  std::byte* mean;
  std::byte* sum;
  const std::byte* gradient;
};

template <class Gradient>
[[gnu::always_inline]] inline Floats add_direction(const RoundMemory& memory, std::size_t i, Floats weight,
                                                   float gradient_scale, float weight_decay) {
  const Floats direction =
      Gradient::load_ordered(memory.gradient + i * Gradient::size) * gradient_scale + weight_decay * weight;
  std::byte* const sum = memory.sum + i * sizeof(float);
  store<false>(sum, canonical_nan(load<Floats>(sum) + direction));
  return direction;
}

template <class Gradient, bool keeps>
struct ReplicaRule {
  const ReplicaStep& call;

  [[gnu::always_inline]] void at(const RoundMemory& memory, std::size_t i) const {
    std::byte* const place = memory.weight + i * sizeof(float);
    const Floats weight = load<Floats>(place);
    const Floats direction = add_direction<Gradient>(memory, i, weight, call.gradient_scale, call.weight_decay);
    if constexpr (keeps) {
      store<false>(memory.kept + i * sizeof(float), weight);
    }
    store<false>(place, canonical_nan(weight - call.rate * direction));
  }
};

template <class Gradient, bool has_before, bool has_mean, bool has_gradient>
struct RoundRule {
  const RoundStep& call;

  [[gnu::always_inline]] void at(const RoundMemory& memory, std::size_t i) const {
    std::byte* const place = memory.weight + i * sizeof(float);
    Floats base = load<Floats>(place);
    if constexpr (has_gradient) {
      add_direction<Gradient>(memory, i, base, call.gradient_scale, call.weight_decay);
    }
    if constexpr (has_before) {
      base = load<Floats>(memory.base + i * sizeof(float));
    }
    if constexpr (has_mean) {
      std::byte* const mean = memory.mean + i * sizeof(float);
      base = canonical_nan(base - call.rate * load<Floats>(mean));
      store<false>(mean, Floats{});
    }
    if constexpr (has_before || has_mean) {
      store<false>(place, base);
    }
  }
};

template <class Gradient, class Rule>
inline void step_all(const Rule& rule, const RoundMemory& memory, std::size_t count) {
  std::size_t i = 0;
  for (; count - i >= 4 * lanes; i += 4 * lanes) {
    for (std::size_t v = 0; v < 4; ++v) {
      rule.at(memory, i + v * lanes);
    }
  }
  for (; count - i >= lanes; i += lanes) {
    rule.at(memory, i);
  }
  if (const std::size_t rest = count - i; rest != 0) {
    PaddedRow<sizeof(float)> weight(memory.weight, i, rest);
    PaddedRow<sizeof(float)> kept(memory.kept, i, rest);
    const PaddedRow<sizeof(float)> base(memory.base, i, rest);
    PaddedRow<sizeof(float)> mean(memory.mean, i, rest);
    PaddedRow<sizeof(float)> sum(memory.sum, i, rest);
    const PaddedRow<Gradient::size> gradient(memory.gradient, i, rest);
    rule.at({weight.bytes, kept.bytes, base.bytes, mean.bytes, sum.bytes, gradient.bytes}, 0);
    weight.save(memory.weight, i, rest);
    kept.save(memory.kept, i, rest);
    mean.save(memory.mean, i, rest);
    sum.save(memory.sum, i, rest);
  }
}

template <class Gradient>
void replica_step(const ReplicaStep& call) {
  const RoundMemory memory{
      reinterpret_cast<std::byte*>(call.weight), reinterpret_cast<std::byte*>(call.before),   nullptr, nullptr,
      reinterpret_cast<std::byte*>(call.sum),    static_cast<const std::byte*>(call.gradient)};
  if (call.before != nullptr) {
    step_all<Gradient>(ReplicaRule<Gradient, true>{call}, memory, call.count);
  } else {
    step_all<Gradient>(ReplicaRule<Gradient, false>{call}, memory, call.count);
  }
}

template <class Gradient, bool has_before, bool has_mean>
inline void end_round(const RoundStep& call, const RoundMemory& memory) {
  if (call.gradient != nullptr) {
    step_all<Gradient>(RoundRule<Gradient, has_before, has_mean, true>{call}, memory, call.count);
  } else {
    step_all<Gradient>(RoundRule<Gradient, has_before, has_mean, false>{call}, memory, call.count);
  }
}

template <class Gradient>
void round_step(const RoundStep& call) {
  const RoundMemory memory{
      reinterpret_cast<std::byte*>(call.weight),       nullptr,
      reinterpret_cast<const std::byte*>(call.before), reinterpret_cast<std::byte*>(call.mean),
      reinterpret_cast<std::byte*>(call.sum),          static_cast<const std::byte*>(call.gradient)};
  if (call.before != nullptr) {
    call.mean != nullptr ? end_round<Gradient, true, true>(call, memory)
                         : end_round<Gradient, true, false>(call, memory);
  } else {
    call.mean != nullptr ? end_round<Gradient, false, true>(call, memory)
                         : end_round<Gradient, false, false>(call, memory);
  }
}

}  // namespace
}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE

// The updates of a worker's own weights: see local_updates.hpp.
#pragma once

#include "../local_updates.hpp"
#include "norm_kernel.hpp"

namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE {
namespace {

[[gnu::always_inline]] inline Floats square_root(Floats values) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(_mm512_maskz_sqrt_ps(0xffff, reinterpret_cast<__m512>(values)));
#elif defined(__AVX2__)
  return reinterpret_cast<Floats>(_mm256_sqrt_ps(reinterpret_cast<__m256>(values)));
#elif defined(__x86_64__)
  return reinterpret_cast<Floats>(_mm_sqrt_ps(reinterpret_cast<__m128>(values)));
#else
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    values[lane] = __builtin_sqrtf(values[lane]);
  }
  return values;
#endif
}

// The memory of a call, from its first element on.
struct LocalMemory {
  std::byte* weight;
  std::byte* kept;          // pre_weight, or mean_square
  const std::byte* before;  // gradient_weight, or nullptr
  const std::byte* gradient;
};

template <class Gradient, bool refreshes>
struct GluRule {
  const GluStep& call;

  [[gnu::always_inline]] void at(const LocalMemory& memory, std::size_t i) const {
    std::byte* const weight = memory.weight + i * sizeof(float);
    std::byte* const pre_weight = memory.kept + i * sizeof(float);
    const Floats old_weight = load<Floats>(weight);
    const Floats global = (load<Floats>(pre_weight) - old_weight) * call.global_scale;
    const Floats gradient = Gradient::load_ordered(memory.gradient + i * Gradient::size) * call.gradient_scale;
    const Floats direction = call.alpha * gradient + call.weight_decay * old_weight + call.beta * global;
    if constexpr (refreshes) {
      store<false>(pre_weight, old_weight);
    }
    store<false>(weight, canonical_nan(old_weight - call.rate * direction));
  }
};

template <class Gradient, bool compensates>
struct DcRule {
  const DcStep& call;

  [[gnu::always_inline]] void at(const LocalMemory& memory, std::size_t i) const {
    std::byte* const weight = memory.weight + i * sizeof(float);
    std::byte* const mean_square = memory.kept + i * sizeof(float);
    const Floats old_weight = load<Floats>(weight);
    const Floats gradient = Gradient::load_ordered(memory.gradient + i * Gradient::size) * call.gradient_scale;
    const Floats squares = gradient * gradient;
    const Floats mean = canonical_nan(call.decay * load<Floats>(mean_square) + (1.0F - call.decay) * squares);
    store<false>(mean_square, mean);
    Floats direction = gradient;
    if constexpr (compensates) {
      const Floats lambda = call.lambda_0 / square_root(mean + call.epsilon);
      direction += lambda * squares * (old_weight - load<Floats>(memory.before + i * sizeof(float)));
    }
    direction += call.weight_decay * old_weight;
    store<false>(weight, canonical_nan(old_weight - call.rate * direction));
  }
};

template <class Gradient, class Rule>
inline void update_all(const Rule& rule, const LocalMemory& memory, std::size_t count) {
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
    const PaddedRow<sizeof(float)> before(memory.before, i, rest);
    const PaddedRow<Gradient::size> gradient(memory.gradient, i, rest);
    rule.at({weight.bytes, kept.bytes, before.bytes, gradient.bytes}, 0);
    weight.save(memory.weight, i, rest);
    kept.save(memory.kept, i, rest);
  }
}

template <class Gradient>
void glu_step(const GluStep& call) {
  const LocalMemory memory{reinterpret_cast<std::byte*>(call.weight), reinterpret_cast<std::byte*>(call.pre_weight),
                           nullptr, static_cast<const std::byte*>(call.gradient)};
  if (call.refreshes) {
    update_all<Gradient>(GluRule<Gradient, true>{call}, memory, call.count);
  } else {
    update_all<Gradient>(GluRule<Gradient, false>{call}, memory, call.count);
  }
}

template <class Gradient>
void dc_step(const DcStep& call) {
  const LocalMemory memory{reinterpret_cast<std::byte*>(call.weight), reinterpret_cast<std::byte*>(call.mean_square),
                           reinterpret_cast<const std::byte*>(call.gradient_weight),
                           static_cast<const std::byte*>(call.gradient)};
  if (call.gradient_weight != nullptr) {
    update_all<Gradient>(DcRule<Gradient, true>{call}, memory, call.count);
  } else {
    update_all<Gradient>(DcRule<Gradient, false>{call}, memory, call.count);
  }
}

}  // namespace
}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE

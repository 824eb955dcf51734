// Loop over the elements of a step, see steps/step.hpp: blocks of four vectors, single vectors, then the rest, fewer
// elements than a vector, through padded copies.
#pragma once

#include <utility>

#include "../steps/steps.hpp"
#include "element.hpp"

namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE {
namespace {

// Stand-in for the copy of the weights, for steps without a copy.
struct NoCopy {
  static constexpr std::size_t size = 0;

  [[gnu::always_inline]] static void store_ordered(std::byte* /*address*/, Floats /*values*/) {}
};

struct VectorMath {
  [[gnu::always_inline]] static Floats canonical_nan(Floats values) {
    return GRADIENTFLOW_SIMD_NAMESPACE::canonical_nan(values);
  }
  [[gnu::always_inline]] static Floats square_root(Floats values) {
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
};

// Memory of a call, from its first element on.
template <std::size_t arrays>
struct StepBytes {
  const std::byte* reads[arrays];
  std::byte* writes[arrays];
  const std::byte* gradient;
  std::byte* parameter;
};

// The loop. Gradient and Parameter are element types; only the weights are streamed.
template <class Step, unsigned variant, class Gradient, class Parameter, bool streaming>
struct StepLoop {
  static constexpr Access access = Step::access(variant);
  using Bytes = StepBytes<Step::arrays>;
  using Arrays = std::make_index_sequence<Step::arrays>;

  [[gnu::always_inline]] static constexpr bool has(unsigned arrays, std::size_t array) {
    return (arrays >> array & 1U) != 0;
  }

  template <std::size_t... array>
  [[gnu::always_inline]] static void step_at(const Step& call, const Bytes& bytes, std::size_t i,
                                             std::index_sequence<array...> /*all*/) {
    const std::size_t at = i * sizeof(float);
    Floats x[] = {(has(access.reads, array) ? load<Floats>(bytes.reads[array] + at) : Floats{})...};
    Floats gradient = {};
    if constexpr (access.reads_gradient) {
      gradient = Gradient::load_ordered(bytes.gradient + i * Gradient::size);
    }
    call.template apply<VectorMath>(variant, gradient, x);
    ((has(access.writes, array) ? store < streaming && array == 0 > (bytes.writes[array] + at, x[array]) : void()),
     ...);
    Parameter::store_ordered(bytes.parameter + i * Parameter::size, x[0]);
  }

  // Steps whole blocks of `width` vectors from element `begin` on, up to `end`. Returns the first element left.
  template <std::size_t width>
  [[gnu::always_inline]] static std::size_t blocks(const Step& call, const Bytes& bytes, std::size_t begin,
                                                   std::size_t end) {
    std::size_t i = begin;
    for (; end - i >= width * lanes; i += width * lanes) {
      for (std::size_t v = 0; v < width; ++v) {
        step_at(call, bytes, i + v * lanes, Arrays());
      }
    }
    return i;
  }

  static void rest(const Step& call, const Bytes& bytes, std::size_t i, std::size_t count) {
    alignas(vector_bytes) std::byte rows[Step::arrays][vector_bytes] = {};
    std::byte gradient[lanes * Gradient::size] = {};
    std::byte parameter[vector_bytes];
    Bytes padded{{}, {}, gradient, parameter};
    for (std::size_t array = 0; array < Step::arrays; ++array) {
      padded.reads[array] = padded.writes[array] = rows[array];
      if (has(access.reads, array)) {
        std::memcpy(rows[array], bytes.reads[array] + i * sizeof(float), count * sizeof(float));
      }
    }
    if constexpr (access.reads_gradient) {
      std::memcpy(gradient, bytes.gradient + i * Gradient::size, count * Gradient::size);
    }
    step_at(call, padded, 0, Arrays());
    for (std::size_t array = 0; array < Step::arrays; ++array) {
      if (has(access.writes, array)) {
        std::memcpy(bytes.writes[array] + i * sizeof(float), rows[array], count * sizeof(float));
      }
    }
    if constexpr (Parameter::size != 0) {
      std::memcpy(bytes.parameter + i * Parameter::size, parameter, count * Parameter::size);
    }
  }

  static void run(const Step& step) {
    const Step call = step;  // copy that no store can change
    const auto memory = call.memory();
    Bytes bytes{{}, {}, static_cast<const std::byte*>(call.gradient), nullptr};
    for (std::size_t array = 0; array < Step::arrays; ++array) {
      bytes.reads[array] = reinterpret_cast<const std::byte*>(memory.reads[array]);
      bytes.writes[array] = reinterpret_cast<std::byte*>(memory.writes[array]);
    }
    if constexpr (Parameter::size != 0) {
      bytes.parameter = static_cast<std::byte*>(call.parameter);
    }
    std::size_t i = blocks<4>(call, bytes, 0, call.count);
    i = blocks<1>(call, bytes, i, call.count);
    if (i < call.count) {
      rest(call, bytes, i, call.count - i);
    }
    if constexpr (streaming) {
      streaming_fence();
    }
  }
};

template <class Step, class Gradient, class Parameter, std::size_t... variant>
void run_variant(const Step& call, std::index_sequence<variant...> /*all*/) {
  constexpr StepKernel<Step> cached[] = {StepLoop<Step, variant, Gradient, Parameter, false>::run...};
  if constexpr (requires { call.store; }) {
    constexpr StepKernel<Step> streaming[] = {StepLoop<Step, variant, Gradient, Parameter, true>::run...};
    if (call.store == Store::streaming && call.before != nullptr && call.before != call.weight &&
        reinterpret_cast<std::uintptr_t>(call.weight) % cache_line == 0) {
      streaming[call.variant()](call);
      return;
    }
  }
  cached[call.variant()](call);
}

template <class Step, class Gradient, class Parameter>
void step(const Step& call) {
  run_variant<Step, Gradient, Parameter>(call, std::make_index_sequence<Step::variants>());
}

template <class Step>
constexpr StepKernels<Step> step_kernels() noexcept {
  if constexpr (requires(Step call) { call.parameter; }) {
    return {{{step<Step, Float16, Float16>, step<Step, Float16, BFloat16>, step<Step, Float16, NoCopy>},
             {step<Step, BFloat16, Float16>, step<Step, BFloat16, BFloat16>, step<Step, BFloat16, NoCopy>},
             {step<Step, Float32, Float16>, step<Step, Float32, BFloat16>, step<Step, Float32, NoCopy>}}};
  } else {
    return {{{nullptr, nullptr, step<Step, Float16, NoCopy>},
             {nullptr, nullptr, step<Step, BFloat16, NoCopy>},
             {nullptr, nullptr, step<Step, Float32, NoCopy>}}};
  }
}

template <class... Steps>
constexpr StepTable all_steps(StepList<Steps...> /*steps*/) noexcept {
  return {step_kernels<Steps>()...};
}

}  // namespace
}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE

#include "chunks.hpp"
#include "norm.cuh"

namespace gradientflow::compute::cuda {
namespace {

constexpr auto sentence = "the gradients of sparse communication are float16, bfloat16 or float32";

// What is held back, or what does nothing when it is added: that is -0, for 0 + -0 is 0, and -0 + -0 is -0.
template <int n>
__device__ Pack<float, n> load_held(const float* held, std::size_t i) {
  if (held != nullptr) {
    return load<n>(held + i);
  }
  Pack<float, n> nothing;
#pragma unroll
  for (int k = 0; k < n; ++k) {
    nothing[k] = -0.0F;
  }
  return nothing;
}

template <class Element, int n>
struct GradientAndHeld {
  Pack<typename Element::Stored, n> gradient;
  Pack<float, n> held;

  __device__ float corrected(int k, float scale) const { return Element::to_float(gradient[k]) * scale + held[k]; }
};

template <class Element>
struct HoldBackBody {
  using Stored = typename Element::Stored;
  static constexpr int width = 4;
  template <int n>
  using Elements = GradientAndHeld<Element, n>;

  Stored* gradient;
  const float* held;
  float* next_held;
  float scale;
  float momentum;

  __device__ explicit HoldBackBody(const HoldBack& call)
      : gradient(static_cast<Stored*>(call.gradient)),
        held(call.held),
        next_held(call.next_held),
        scale(call.scale),
        momentum(call.momentum) {}

  __device__ bool is_aligned() const {
    return cuda::is_aligned<width>(gradient) && cuda::is_aligned<width>(held) && cuda::is_aligned<width>(next_held);
  }
  template <int n>
  __device__ Elements<n> load(std::size_t i) const {
    return {cuda::load<n>(gradient + i), load_held<n>(held, i)};
  }
  template <int n>
  __device__ Pack<float, n> finish(const Elements<n>& elements, std::size_t i) const {
    Pack<float, n> next;
    Pack<float, n> magnitudes;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const float x = elements.corrected(k, scale);
      next[k] = same_nan(x * momentum);
      magnitudes[k] = fabsf(x);
    }
    if (next_held != nullptr) {
      store<n>(next_held + i, next);
    }
    store<n>(gradient + i, Pack<Stored, n>{});
    return magnitudes;
  }
};

template <class Element>
struct GatherBody {
  using Stored = typename Element::Stored;
  static constexpr int width = 4;
  template <int n>
  using Elements = GradientAndHeld<Element, n>;

  const Stored* gradient;
  const float* held;
  Stored* buffer;
  float scale;
  float inverse;

  __device__ explicit GatherBody(const Gather& call)
      : gradient(static_cast<const Stored*>(call.gradient)),
        held(call.held),
        buffer(static_cast<Stored*>(call.buffer)),
        scale(call.scale),
        inverse(1.0F / call.scale) {}

  __device__ bool is_aligned() const {
    return cuda::is_aligned<width>(gradient) && cuda::is_aligned<width>(held) && cuda::is_aligned<width>(buffer);
  }
  template <int n>
  __device__ Elements<n> load(std::size_t i) const {
    return {cuda::load<n>(gradient + i), load_held<n>(held, i)};
  }
  template <int n>
  __device__ Pack<float, n> finish(const Elements<n>& elements, std::size_t i) const {
    Pack<Stored, n> sent;
    Pack<float, n> magnitudes;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const float x = elements.corrected(k, scale);
      sent[k] = Element::from_float(same_nan(x * inverse));
      magnitudes[k] = fabsf(x);
    }
    store<n>(buffer + i, sent);
    return magnitudes;
  }
};

template <class Element>
struct ScatterBody {
  using Stored = typename Element::Stored;
  static constexpr int width = 16 / sizeof(Stored);
  template <int n>
  using Elements = Pack<Stored, n>;

  Stored* gradient;
  const Stored* buffer;
  float scale;

  __device__ explicit ScatterBody(const Scatter& call)
      : gradient(static_cast<Stored*>(call.gradient)),
        buffer(static_cast<const Stored*>(call.buffer)),
        scale(call.scale) {}

  __device__ bool is_aligned() const { return cuda::is_aligned<width>(gradient) && cuda::is_aligned<width>(buffer); }
  template <int n>
  __device__ Elements<n> load(std::size_t i) const {
    return cuda::load<n>(buffer + i);
  }
  template <int n>
  __device__ Pack<float, n> finish(const Elements<n>& elements, std::size_t i) const {
    store<n>(gradient + i, elements);
    Pack<float, n> magnitudes;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      magnitudes[k] = fabsf(Element::to_float(elements[k]) * scale);
    }
    return magnitudes;
  }
};

}  // namespace

void hold_back(const CallList<HoldBack>& list, double* norms, void* scratch, Stream stream) {
  with_element(list.dtype, sentence,
               [&]<class Element>() { add_up<HoldBackBody<Element>>(list, norms, scratch, stream); });
}

void gather(const CallList<Gather>& list, double* norms, void* scratch, Stream stream) {
  with_element(list.dtype, sentence,
               [&]<class Element>() { add_up<GatherBody<Element>>(list, norms, scratch, stream); });
}

void scatter(const CallList<Scatter>& list, double* norms, void* scratch, Stream stream) {
  with_element(list.dtype, sentence,
               [&]<class Element>() { add_up<ScatterBody<Element>>(list, norms, scratch, stream); });
}

}  // namespace gradientflow::compute::cuda

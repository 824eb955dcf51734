#include "chunks.hpp"
#include "norm.cuh"

namespace gradientflow::compute::cuda {
namespace {

constexpr auto sentence = "the gradients of sparse communication are float16, bfloat16 or float32";

// Loads the residual, or -0, the neutral element of addition (0 + -0 is 0, and -0 + -0 is -0).
template <int n>
__device__ Pack<float, n> load_residual(const float* residual, std::size_t i) {
  if (residual != nullptr) {
    return load<n>(residual + i);
  }
  Pack<float, n> nothing;
#pragma unroll
  for (int k = 0; k < n; ++k) {
    nothing[k] = -0.0F;
  }
  return nothing;
}

template <class Element, int n>
struct GradientAndResidual {
  Pack<typename Element::Stored, n> gradient;
  Pack<float, n> residual;

  __device__ float corrected(int k, float scale) const { return Element::to_float(gradient[k]) * scale + residual[k]; }
};

template <class Element>
struct UpdateResidualBody {
  using Stored = typename Element::Stored;
  static constexpr int width = 4;
  template <int n>
  using Elements = GradientAndResidual<Element, n>;

  Stored* gradient;
  const float* residual;
  float* next_residual;
  float scale;
  float momentum;

  __device__ explicit UpdateResidualBody(const UpdateResidual& call)
      : gradient(static_cast<Stored*>(call.gradient)),
        residual(call.residual),
        next_residual(call.next_residual),
        scale(call.scale),
        momentum(call.momentum) {}

  __device__ bool is_aligned() const {
    return cuda::is_aligned<width>(gradient) && cuda::is_aligned<width>(residual) &&
           cuda::is_aligned<width>(next_residual);
  }
  template <int n>
  __device__ Elements<n> load(std::size_t i) const {
    return {cuda::load<n>(gradient + i), load_residual<n>(residual, i)};
  }
  template <int n>
  __device__ Pack<float, n> finish(const Elements<n>& elements, std::size_t i) const {
    Pack<float, n> next;
    Pack<float, n> magnitudes;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const float x = elements.corrected(k, scale);
      next[k] = canonical_nan(x * momentum);
      magnitudes[k] = fabsf(x);
    }
    if (next_residual != nullptr) {
      store<n>(next_residual + i, next);
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
  using Elements = GradientAndResidual<Element, n>;

  const Stored* gradient;
  const float* residual;
  Stored* buffer;
  float scale;
  float inverse;

  __device__ explicit GatherBody(const Gather& call)
      : gradient(static_cast<const Stored*>(call.gradient)),
        residual(call.residual),
        buffer(static_cast<Stored*>(call.buffer)),
        scale(call.scale),
        inverse(1.0F / call.scale) {}

  __device__ bool is_aligned() const {
    return cuda::is_aligned<width>(gradient) && cuda::is_aligned<width>(residual) && cuda::is_aligned<width>(buffer);
  }
  template <int n>
  __device__ Elements<n> load(std::size_t i) const {
    return {cuda::load<n>(gradient + i), load_residual<n>(residual, i)};
  }
  template <int n>
  __device__ Pack<float, n> finish(const Elements<n>& elements, std::size_t i) const {
    Pack<Stored, n> sent;
    Pack<float, n> magnitudes;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const float x = elements.corrected(k, scale);
      sent[k] = Element::from_float(canonical_nan(x * inverse));
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

void update_residual(const CallList<UpdateResidual>& list, double* norms, void* scratch, Stream stream) {
  with_element(list.dtype, sentence,
               [&]<class Element>() { add_up<UpdateResidualBody<Element>>(list, norms, scratch, stream); });
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

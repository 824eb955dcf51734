#include <cmath>

#include "adam_step.hpp"
#include "launch.cuh"
#include "work.cuh"

namespace gradientflow::compute::cuda {
namespace {

template <class Element>
struct AdamBody {
  using Stored = typename Element::Stored;
  static constexpr int width = 4;

  template <int n>
  struct Elements {
    Pack<float, n> weight;
    Pack<Stored, n> gradient;
    Pack<float, n> mean;
    Pack<float, n> mean_square;
  };

  AdamStep call;
  const float* before;
  const Stored* gradient;
  std::uint16_t* parameter;

  __device__ explicit AdamBody(const AdamStep& step)
      : call(step),
        before(step.before == nullptr ? step.weight : step.before),
        gradient(static_cast<const Stored*>(step.gradient)),
        parameter(static_cast<std::uint16_t*>(step.parameter)) {}

  __device__ bool is_aligned() const {
    return cuda::is_aligned<width>(call.weight) && cuda::is_aligned<width>(before) &&
           cuda::is_aligned<width>(gradient) && cuda::is_aligned<width>(call.mean) &&
           cuda::is_aligned<width>(call.mean_square) && cuda::is_aligned<width>(parameter);
  }
  template <int n>
  __device__ Elements<n> load(std::size_t i) const {
    return {cuda::load<n>(before + i), cuda::load<n>(gradient + i), cuda::load<n>(call.mean + i),
            cuda::load<n>(call.mean_square + i)};
  }
  template <int n>
  __device__ void finish(const Elements<n>& elements, std::size_t i) const {
    Pack<float, n> weights;
    Pack<float, n> means;
    Pack<float, n> squares;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const float weight = elements.weight[k];
      const float g = Element::to_float(elements.gradient[k]) * call.gradient_scale + call.weight_decay * weight;
      means[k] = canonical_nan(call.beta_1 * elements.mean[k] + call.alpha_1 * g);
      squares[k] = canonical_nan(call.beta_2 * elements.mean_square[k] + call.alpha_2 * g * g);
      const float step = call.rate * means[k] / (sqrtf(squares[k]) / call.root + call.epsilon);
      weights[k] = canonical_nan(call.keep * weight - step);
    }
    store<n>(call.mean + i, means);
    store<n>(call.mean_square + i, squares);
    store<n>(call.weight + i, weights);
    if (parameter != nullptr) {
      store<n>(parameter + i, narrowed<n>(weights, call.parameter_dtype));
    }
  }
};

template <class Element>
__global__ void __launch_bounds__(threads) adam_blocks(CallList<AdamStep> list) {
  const Block block = find_block(list, blockIdx.x);
  constexpr unsigned packs = norm_block / (threads * AdamBody<Element>::width);
  for_each_element<packs>(AdamBody<Element>(list.calls[block.call]), block);
}

}  // namespace

void adam_step(const CallList<AdamStep>& list, Stream stream) {
  with_element(list.dtype, "the gradients of an optimizer are float16, bfloat16 or float32",
               [&]<class Element>() { launch(adam_blocks<Element>, list.blocks, threads, stream, list); });
}

}  // namespace gradientflow::compute::cuda

#include "norm.cuh"
#include "optimizer_steps.hpp"

namespace gradientflow::compute::cuda {
namespace {

template <class Element>
struct StepBody {
  using Stored = typename Element::Stored;
  static constexpr int width = 4;

  template <int n>
  struct Elements {
    Pack<float, n> weight;
    Pack<Stored, n> gradient;
    Pack<float, n> momentum;
  };

  MomentumStep call;
  const float* before;
  const Stored* gradient;
  std::uint16_t* parameter;

  __device__ explicit StepBody(const MomentumStep& step)
      : call(step),
        before(step.before == nullptr ? step.weight : step.before),
        gradient(static_cast<const Stored*>(step.gradient)),
        parameter(static_cast<std::uint16_t*>(step.parameter)) {}

  __device__ bool is_aligned() const {
    return cuda::is_aligned<width>(call.weight) && cuda::is_aligned<width>(before) &&
           cuda::is_aligned<width>(gradient) && cuda::is_aligned<width>(call.momentum) &&
           cuda::is_aligned<width>(parameter);
  }
  template <int n>
  __device__ Elements<n> load(std::size_t i) const {
    return {cuda::load<n>(before + i), cuda::load<n>(gradient + i),
            call.momentum == nullptr ? Pack<float, n>{} : cuda::load<n>(call.momentum + i)};
  }
  template <int n>
  __device__ void finish(const Elements<n>& elements, std::size_t i) const {
    Pack<float, n> weights;
    Pack<float, n> momenta;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const float direction =
          Element::to_float(elements.gradient[k]) * call.gradient_scale + call.weight_decay * elements.weight[k];
      float step = call.inner_rate * direction;
      if (call.momentum != nullptr) {
        step = canonical_nan(call.factor * elements.momentum[k] + step);
      }
      momenta[k] = step;
      weights[k] = canonical_nan(elements.weight[k] - call.outer_rate * step);
    }
    if (call.momentum != nullptr) {
      store<n>(call.momentum + i, momenta);
    }
    store<n>(call.weight + i, weights);
    if (parameter != nullptr) {
      store<n>(parameter + i, narrowed<n>(weights, call.parameter_dtype));
    }
  }
};

template <class Element>
__global__ void __launch_bounds__(threads) step_blocks(CallList<MomentumStep> list) {
  const Block block = find_block(list, blockIdx.x);
  constexpr unsigned packs = norm_block / (threads * StepBody<Element>::width);
  for_each_element<packs>(StepBody<Element>(list.calls[block.call]), block);
}

template <class Element>
struct SquaresBody {
  using Stored = typename Element::Stored;
  static constexpr int width = 16 / sizeof(Stored);
  template <int n>
  using Elements = Pack<Stored, n>;

  const Stored* source;
  float scale;

  __device__ explicit SquaresBody(const SumOfSquares& call)
      : source(static_cast<const Stored*>(call.source)), scale(call.scale) {}

  __device__ bool is_aligned() const { return cuda::is_aligned<width>(source); }
  template <int n>
  __device__ Elements<n> load(std::size_t i) const {
    return cuda::load<n>(source + i);
  }
  template <int n>
  __device__ Pack<float, n> finish(const Elements<n>& elements, std::size_t /*i*/) const {
    Pack<float, n> squares;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const float x = Element::to_float(elements[k]) * scale;
      squares[k] = x * x;
    }
    return squares;
  }
};

}  // namespace

void momentum_step(const CallList<MomentumStep>& list, Stream stream) {
  with_element(list.dtype, "the gradients of an optimizer are float16, bfloat16 or float32",
               [&]<class Element>() { launch(step_blocks<Element>, list.blocks, threads, stream, list); });
}

void sum_of_squares(const CallList<SumOfSquares>& list, double* sums, void* scratch, Stream stream) {
  with_element(list.dtype, "sum_of_squares is for float16, bfloat16 and float32",
               [&]<class Element>() { add_up<SquaresBody<Element>>(list, sums, scratch, stream); });
}

}  // namespace gradientflow::compute::cuda

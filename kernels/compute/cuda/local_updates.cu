#include <cmath>

#include "launch.cuh"
#include "local_updates.hpp"
#include "work.cuh"

namespace gradientflow::compute::cuda {
namespace {

template <class Element>
struct GluBody {
  using Stored = typename Element::Stored;
  static constexpr int width = 4;

  template <int n>
  struct Elements {
    Pack<float, n> weight;
    Pack<float, n> pre_weight;
    Pack<Stored, n> gradient;
  };

  GluStep call;
  const Stored* gradient;

  __device__ explicit GluBody(const GluStep& step) : call(step), gradient(static_cast<const Stored*>(step.gradient)) {}

  __device__ bool is_aligned() const {
    return cuda::is_aligned<width>(call.weight) && cuda::is_aligned<width>(call.pre_weight) &&
           cuda::is_aligned<width>(gradient);
  }
  template <int n>
  __device__ Elements<n> load(std::size_t i) const {
    return {cuda::load<n>(call.weight + i), cuda::load<n>(call.pre_weight + i), cuda::load<n>(gradient + i)};
  }
  template <int n>
  __device__ void finish(const Elements<n>& elements, std::size_t i) const {
    Pack<float, n> weights;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const float weight = elements.weight[k];
      const float global = (elements.pre_weight[k] - weight) * call.global_scale;
      const float direction = call.alpha * (Element::to_float(elements.gradient[k]) * call.gradient_scale) +
                              call.weight_decay * weight + call.beta * global;
      weights[k] = canonical_nan(weight - call.rate * direction);
    }
    if (call.refreshes) {
      store<n>(call.pre_weight + i, elements.weight);
    }
    store<n>(call.weight + i, weights);
  }
};

template <class Element>
struct DcBody {
  using Stored = typename Element::Stored;
  static constexpr int width = 4;

  template <int n>
  struct Elements {
    Pack<float, n> weight;
    Pack<float, n> mean_square;
    Pack<float, n> gradient_weight;
    Pack<Stored, n> gradient;
  };

  DcStep call;
  const Stored* gradient;

  __device__ explicit DcBody(const DcStep& step) : call(step), gradient(static_cast<const Stored*>(step.gradient)) {}

  __device__ bool is_aligned() const {
    return cuda::is_aligned<width>(call.weight) && cuda::is_aligned<width>(call.mean_square) &&
           cuda::is_aligned<width>(call.gradient_weight) && cuda::is_aligned<width>(gradient);
  }
  template <int n>
  __device__ Elements<n> load(std::size_t i) const {
    return {cuda::load<n>(call.weight + i), cuda::load<n>(call.mean_square + i),
            call.gradient_weight == nullptr ? Pack<float, n>{} : cuda::load<n>(call.gradient_weight + i),
            cuda::load<n>(gradient + i)};
  }
  template <int n>
  __device__ void finish(const Elements<n>& elements, std::size_t i) const {
    Pack<float, n> weights;
    Pack<float, n> means;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const float weight = elements.weight[k];
      const float g = Element::to_float(elements.gradient[k]) * call.gradient_scale;
      const float squares = g * g;
      means[k] = canonical_nan(call.decay * elements.mean_square[k] + (1.0F - call.decay) * squares);
      float direction = g;
      if (call.gradient_weight != nullptr) {
        const float lambda = call.lambda_0 / sqrtf(means[k] + call.epsilon);
        direction += lambda * squares * (weight - elements.gradient_weight[k]);
      }
      direction += call.weight_decay * weight;
      weights[k] = canonical_nan(weight - call.rate * direction);
    }
    store<n>(call.mean_square + i, means);
    store<n>(call.weight + i, weights);
  }
};

template <class Body, class Call>
__global__ void __launch_bounds__(threads) update_blocks(CallList<Call> list) {
  const Block block = find_block(list, blockIdx.x);
  constexpr unsigned packs = norm_block / (threads * Body::width);
  for_each_element<packs>(Body(list.calls[block.call]), block);
}

template <template <class> class Body, class Call>
void update(const CallList<Call>& list, Stream stream) {
  with_element(list.dtype, "the gradients of a local update are float16, bfloat16 or float32", [&]<class Element>() {
    launch(update_blocks<Body<Element>, Call>, list.blocks, threads, stream, list);
  });
}

}  // namespace

void glu_step(const CallList<GluStep>& list, Stream stream) { update<GluBody>(list, stream); }

void dc_step(const CallList<DcStep>& list, Stream stream) { update<DcBody>(list, stream); }

}  // namespace gradientflow::compute::cuda

#include "launch.cuh"
#include "replica_steps.hpp"
#include "work.cuh"

namespace gradientflow::compute::cuda {
namespace {

template <class Element>
struct ReplicaBody {
  using Stored = typename Element::Stored;
  static constexpr int width = 4;

  template <int n>
  struct Elements {
    Pack<float, n> weight;
    Pack<float, n> sum;
    Pack<Stored, n> gradient;
  };

  ReplicaStep call;
  const Stored* gradient;

  __device__ explicit ReplicaBody(const ReplicaStep& step)
      : call(step), gradient(static_cast<const Stored*>(step.gradient)) {}

  __device__ bool is_aligned() const {
    return cuda::is_aligned<width>(call.weight) && cuda::is_aligned<width>(call.before) &&
           cuda::is_aligned<width>(call.sum) && cuda::is_aligned<width>(gradient);
  }
  template <int n>
  __device__ Elements<n> load(std::size_t i) const {
    return {cuda::load<n>(call.weight + i), cuda::load<n>(call.sum + i), cuda::load<n>(gradient + i)};
  }
  template <int n>
  __device__ void finish(const Elements<n>& elements, std::size_t i) const {
    Pack<float, n> weights;
    Pack<float, n> sums;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const float direction =
          Element::to_float(elements.gradient[k]) * call.gradient_scale + call.weight_decay * elements.weight[k];
      sums[k] = canonical_nan(elements.sum[k] + direction);
      weights[k] = canonical_nan(elements.weight[k] - call.rate * direction);
    }
    if (call.before != nullptr) {
      store<n>(call.before + i, elements.weight);
    }
    store<n>(call.sum + i, sums);
    store<n>(call.weight + i, weights);
  }
};

template <class Element>
struct RoundBody {
  using Stored = typename Element::Stored;
  static constexpr int width = 4;

  template <int n>
  struct Elements {
    Pack<float, n> weight;
    Pack<float, n> before;
    Pack<float, n> mean;
    Pack<float, n> sum;
    Pack<Stored, n> gradient;
  };

  RoundStep call;
  const Stored* gradient;

  __device__ explicit RoundBody(const RoundStep& step)
      : call(step), gradient(static_cast<const Stored*>(step.gradient)) {}

  __device__ bool is_aligned() const {
    return cuda::is_aligned<width>(call.weight) && cuda::is_aligned<width>(call.before) &&
           cuda::is_aligned<width>(call.mean) && cuda::is_aligned<width>(call.sum) && cuda::is_aligned<width>(gradient);
  }
  template <int n>
  __device__ Elements<n> load(std::size_t i) const {
    return {cuda::load<n>(call.weight + i), call.before == nullptr ? Pack<float, n>{} : cuda::load<n>(call.before + i),
            call.mean == nullptr ? Pack<float, n>{} : cuda::load<n>(call.mean + i),
            gradient == nullptr ? Pack<float, n>{} : cuda::load<n>(call.sum + i),
            gradient == nullptr ? Pack<Stored, n>{} : cuda::load<n>(gradient + i)};
  }
  template <int n>
  __device__ void finish(const Elements<n>& elements, std::size_t i) const {
    Pack<float, n> weights;
    Pack<float, n> sums;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      sums[k] = canonical_nan(elements.sum[k] + (Element::to_float(elements.gradient[k]) * call.gradient_scale +
                                                 call.weight_decay * elements.weight[k]));
      weights[k] = call.before == nullptr ? elements.weight[k] : elements.before[k];
      if (call.mean != nullptr) {
        weights[k] = canonical_nan(weights[k] - call.rate * elements.mean[k]);
      }
    }
    if (gradient != nullptr) {
      store<n>(call.sum + i, sums);
    }
    if (call.mean != nullptr) {
      store<n>(call.mean + i, Pack<float, n>{});
    }
    if (call.before != nullptr || call.mean != nullptr) {
      store<n>(call.weight + i, weights);
    }
  }
};

template <class Body, class Call>
__global__ void __launch_bounds__(threads) step_blocks(CallList<Call> list) {
  const Block block = find_block(list, blockIdx.x);
  constexpr unsigned packs = norm_block / (threads * Body::width);
  for_each_element<packs>(Body(list.calls[block.call]), block);
}

template <template <class> class Body, class Call>
void step(const CallList<Call>& list, Stream stream) {
  with_element(list.dtype, "the gradients of a replica are float16, bfloat16 or float32",
               [&]<class Element>() { launch(step_blocks<Body<Element>, Call>, list.blocks, threads, stream, list); });
}

}  // namespace

void replica_step(const CallList<ReplicaStep>& list, Stream stream) { step<ReplicaBody>(list, stream); }

void round_step(const CallList<RoundStep>& list, Stream stream) { step<RoundBody>(list, stream); }

}  // namespace gradientflow::compute::cuda

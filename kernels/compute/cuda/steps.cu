#include <cmath>

#include "launch.cuh"
#include "steps.hpp"
#include "work.cuh"

namespace gradientflow::compute::cuda {
namespace {

struct ElementMath {
  __device__ static float canonical_nan(float value) { return cuda::canonical_nan(value); }
  __device__ static float square_root(float value) { return sqrtf(value); }
};

__device__ bool has(unsigned arrays, unsigned array) { return (arrays >> array & 1U) != 0; }

// Returns the weights rounded to `dtype`, float16 or bfloat16.
template <int n>
__device__ Pack<std::uint16_t, n> narrowed(const Pack<float, n>& weights, DType dtype) {
  Pack<std::uint16_t, n> narrow;
#pragma unroll
  for (int k = 0; k < n; ++k) {
    narrow[k] = dtype == DType::float16 ? Float16::from_float(weights[k]) : BFloat16::from_float(weights[k]);
  }
  return narrow;
}

// A body (see work.cuh) of any step.
template <class Step, class Element>
struct StepBody {
  using Stored = typename Element::Stored;
  static constexpr int width = 4;
  static constexpr unsigned arrays = Step::arrays;

  template <int n>
  struct Elements {
    Pack<float, n> x[arrays];
    Pack<Stored, n> gradient;
  };

  Step call;
  StepMemory<arrays> memory;
  const Stored* gradient;
  unsigned variant;

  __device__ explicit StepBody(const Step& step)
      : call(step),
        memory(call.memory()),
        gradient(static_cast<const Stored*>(step.gradient)),
        variant(call.variant()) {}

  __device__ Access access() const { return Step::access(variant); }

  // Returns the copy of the weights in 16 bits, or nullptr.
  __device__ std::uint16_t* parameter() const {
    if constexpr (requires { call.parameter; }) {
      return static_cast<std::uint16_t*>(call.parameter);
    } else {
      return nullptr;
    }
  }
  __device__ bool is_aligned() const {
    bool is_aligned = cuda::is_aligned<width>(gradient) && cuda::is_aligned<width>(parameter());
#pragma unroll
    for (unsigned array = 0; array < arrays; ++array) {
      is_aligned =
          is_aligned && cuda::is_aligned<width>(memory.reads[array]) && cuda::is_aligned<width>(memory.writes[array]);
    }
    return is_aligned;
  }
  template <int n>
  __device__ Elements<n> load(std::size_t i) const {
    Elements<n> elements{};
#pragma unroll
    for (unsigned array = 0; array < arrays; ++array) {
      if (has(access().reads, array)) {
        elements.x[array] = cuda::load<n>(memory.reads[array] + i);
      }
    }
    if (access().reads_gradient) {
      elements.gradient = cuda::load<n>(gradient + i);
    }
    return elements;
  }
  template <int n>
  __device__ void finish(Elements<n> elements, std::size_t i) const {
#pragma unroll
    for (int k = 0; k < n; ++k) {
      float x[arrays];
#pragma unroll
      for (unsigned array = 0; array < arrays; ++array) {
        x[array] = elements.x[array][k];
      }
      call.template apply<ElementMath>(variant, Element::to_float(elements.gradient[k]), x);
#pragma unroll
      for (unsigned array = 0; array < arrays; ++array) {
        elements.x[array][k] = x[array];
      }
    }
#pragma unroll
    for (unsigned array = 0; array < arrays; ++array) {
      if (has(access().writes, array)) {
        store<n>(memory.writes[array] + i, elements.x[array]);
      }
    }
    if constexpr (requires { call.parameter; }) {
      if (call.parameter != nullptr) {
        store<n>(parameter() + i, narrowed<n>(elements.x[0], call.parameter_dtype));
      }
    }
  }
};

template <class Body, class Step>
__global__ void __launch_bounds__(threads) step_blocks(CallList<Step> list) {
  const Block block = find_block(list, blockIdx.x);
  constexpr unsigned packs = norm_block / (threads * Body::width);
  for_each_element<packs>(Body(list.calls[block.call]), block);
}

}  // namespace

void step(const AnyStepList& any, Stream stream) {
  std::visit(
      [stream]<class Step>(const CallList<Step>& list) {
        with_element(list.dtype, "the gradients of a step are float16, bfloat16 or float32", [&]<class Element>() {
          launch(step_blocks<StepBody<Step, Element>, Step>, list.blocks, threads, stream, list);
        });
      },
      any);
}

}  // namespace gradientflow::compute::cuda

#include <algorithm>

#include "kernels.hpp"
#include "launch.cuh"
#include "work.cuh"

namespace gradientflow::compute::cuda {
namespace {

constexpr unsigned packs = 8;  // packs that a thread reads in turn
constexpr unsigned warp = 32;

template <class Element>
struct Values {
  using Stored = typename Element::Stored;
  static constexpr int width = 16 / sizeof(Stored);
  static constexpr std::size_t block = packs * threads * width;

  const Stored* source;

  template <int n>
  __device__ unsigned count(std::size_t i) const {
    const Pack<Stored, n> values = load<n>(source + i);
    unsigned found = 0;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      found += isfinite(Element::to_float(values[k])) ? 0U : 1U;
    }
    return found;
  }
};

template <class Element>
__global__ void __launch_bounds__(threads)
    count_blocks(Values<Element> values, std::size_t count, unsigned long long* total) {
  constexpr unsigned width = Values<Element>::width;
  const Block block = block_of<Values<Element>::block>(count);
  unsigned found = 0;
  if (block.count == Values<Element>::block && is_aligned<width>(values.source)) {
#pragma unroll
    for (unsigned p = 0; p < packs; ++p) {
      found += values.template count<width>(block.begin + (p * threads + threadIdx.x) * width);
    }
  } else {
#pragma unroll 1
    for (unsigned k = threadIdx.x; k < block.count; k += threads) {
      found += values.template count<1>(block.begin + k);
    }
  }
#pragma unroll
  for (unsigned distance = warp / 2; distance > 0; distance /= 2) {
    found += __shfl_xor_sync(0xffffffffU, found, distance);
  }
  if (found != 0 && threadIdx.x % warp == 0) {
    atomicAdd(total, found);
  }
}

}  // namespace

void count_nonfinite(const void* source, DType dtype, std::size_t count, std::uint64_t* found, Stream stream) {
  with_element(dtype, "count_nonfinite is for float16, bfloat16 and float32", [&]<class Element>() {
    using V = Values<Element>;
    check(cudaMemsetAsync(found, 0, sizeof *found, static_cast<cudaStream_t>(stream)));
    launch(count_blocks<Element>, (count + V::block - 1) / V::block, threads, stream,
           V{static_cast<const typename Element::Stored*>(source)}, count,
           reinterpret_cast<unsigned long long*>(found));
  });
}

}  // namespace gradientflow::compute::cuda

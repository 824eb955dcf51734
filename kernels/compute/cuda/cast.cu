#include <algorithm>

#include "kernels.hpp"
#include "launch.cuh"
#include "work.cuh"

namespace gradientflow::compute::cuda {
namespace {

template <class To, class From>
struct CastBody {
  static constexpr int width =
      16 / static_cast<int>(std::max(sizeof(typename To::Stored), sizeof(typename From::Stored)));
  template <int n>
  using Elements = Pack<typename From::Stored, n>;

  typename To::Stored* destination;
  const typename From::Stored* source;
  float scale;

  __device__ bool is_aligned() const { return cuda::is_aligned<width>(destination) && cuda::is_aligned<width>(source); }
  template <int n>
  __device__ Elements<n> load(std::size_t i) const {
    return cuda::load<n>(source + i);
  }
  template <int n>
  __device__ void finish(const Elements<n>& elements, std::size_t i) const {
    Pack<typename To::Stored, n> result;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      result[k] = To::from_float(canonical_nan(From::to_float(elements[k]) * scale));
    }
    store<n>(destination + i, result);
  }
};

constexpr unsigned packs = 4;  // packs of a thread

template <class Body>
__global__ void __launch_bounds__(threads) cast_blocks(Body body, std::size_t count) {
  for_each_element<packs>(body, block_of<packs * threads * Body::width>(count));
}

template <class To, class From>
void cast_elements(void* destination, const void* source, std::size_t count, float scale, Stream stream) {
  using Body = CastBody<To, From>;
  constexpr std::size_t block = packs * threads * Body::width;
  const Body body{static_cast<typename To::Stored*>(destination), static_cast<const typename From::Stored*>(source),
                  scale};
  launch(cast_blocks<Body>, (count + block - 1) / block, threads, stream, body, count);
}

}  // namespace

void cast(void* destination, DType destination_dtype, const void* source, DType source_dtype, std::size_t count,
          float scale, Stream stream) {
  constexpr auto sentence = "cast is between float16, bfloat16 and float32";
  with_element(destination_dtype, sentence, [&]<class To>() {
    with_element(source_dtype, sentence,
                 [&]<class From>() { cast_elements<To, From>(destination, source, count, scale, stream); });
  });
}

}  // namespace gradientflow::compute::cuda

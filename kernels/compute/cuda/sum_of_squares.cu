#include "norm.cuh"
#include "sum_of_squares.hpp"

namespace gradientflow::compute::cuda {
namespace {

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

void sum_of_squares(const CallList<SumOfSquares>& list, double* sums, void* scratch, Stream stream) {
  with_element(list.dtype, "sum_of_squares is for float16, bfloat16 and float32",
               [&]<class Element>() { add_up<SquaresBody<Element>>(list, sums, scratch, stream); });
}

}  // namespace gradientflow::compute::cuda

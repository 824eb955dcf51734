#include "norm.cuh"

namespace gradientflow::compute::cuda {
namespace {

constexpr unsigned warp = 32;
constexpr unsigned most_threads = 1024;

// Returns the exponent of the last bit of a nonzero value: the value is a multiple of 2 to that power.
__device__ int last_bit_of(float value) {
  const unsigned bits = __float_as_uint(value);
  const int exponent = static_cast<int>(bits >> 23U);
  const unsigned fraction = bits & 0x7fffffU;
  return exponent == 0 ? __ffs(static_cast<int>(fraction)) - 150
                       : exponent + __ffs(static_cast<int>(fraction | 0x800000U)) - 151;
}

// Sum of nonnegative floats, and the exponent of a power of two that divides all of them.
struct Part {
  double sum = 0.0;
  int last_bit = 128;  // above the exponent of any float

  __device__ void add(const Part& other) {
    sum += other.sum;
    last_bit = min(last_bit, other.last_bit);
  }
  __device__ void add(float value) { add({value, value != 0.0F ? last_bit_of(value) : Part().last_bit}); }

  // Tells if the sum is exact in any order of addition, since all terms are multiples of 2^last_bit and float64 has 53
  // bits.
  __device__ bool is_exact() const { return sum < scalbn(1.0, last_bit + 53); }
};

// Adds the parts of a warp's threads, which all call it and get the sum.
__device__ Part add_warp(Part part) {
#pragma unroll
  for (unsigned distance = warp / 2; distance > 0; distance /= 2) {
    part.add({__shfl_xor_sync(0xffffffffU, part.sum, distance), __shfl_xor_sync(0xffffffffU, part.last_bit, distance)});
  }
  return part;
}

// Adds the blocks of each call, in one thread block per call. Most sums are exact, and therefore the same in any order;
// otherwise one thread adds the blocks in their order. (Sums that round do not fall below the limit: rounding is
// monotonic, and the limit is a float64.)
__global__ void add_each_call(const float* sums, const std::uint32_t* first_block, double* norms) {
  __shared__ double part_sums[most_threads / warp];
  __shared__ int part_last_bits[most_threads / warp];
  const std::uint32_t number = first_block[blockIdx.x + 1] - first_block[blockIdx.x];
  sums += first_block[blockIdx.x] - first_block[0];
  Part part;
  for (std::uint32_t i = threadIdx.x; i < number; i += blockDim.x) {
    part.add(sums[i]);
  }
  part = add_warp(part);
  if (threadIdx.x % warp == 0) {
    part_sums[threadIdx.x / warp] = part.sum;
    part_last_bits[threadIdx.x / warp] = part.last_bit;
  }
  __syncthreads();
  if (threadIdx.x != 0) {
    return;
  }
  for (unsigned i = 1; i < blockDim.x / warp; ++i) {
    part.add({part_sums[i], part_last_bits[i]});
  }
  double norm = part.sum;
  if (isfinite(norm) && !part.is_exact()) {
    norm = 0.0;
    for (std::uint32_t i = 0; i < number; ++i) {
      norm += static_cast<double>(sums[i]);
    }
  }
  norms[blockIdx.x] = norm != norm ? __longlong_as_double(0x7ff8000000000000LL) : norm;
}

}  // namespace

void add_calls(const float* sums, const std::uint32_t* first_block, std::size_t number, std::size_t blocks,
               double* norms, Stream stream) {
  if (number == 0) {
    return;
  }
  const std::size_t each = (blocks / number + warp - 1) / warp * warp;
  const auto threads_of_call = static_cast<unsigned>(std::clamp<std::size_t>(each, warp, most_threads));
  launch(add_each_call, number, threads_of_call, stream, sums, first_block, norms);
}

}  // namespace gradientflow::compute::cuda

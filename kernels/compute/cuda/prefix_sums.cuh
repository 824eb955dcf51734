// Prefix sums over a thread block or over memory. Each sum excludes the number at its own position.
#pragma once

#include <cstddef>
#include <cstdint>

#include "work.cuh"

namespace gradientflow::compute::cuda {

constexpr std::uint32_t no_number = 0xffffffffU;

// Returns the sum of the values of all threads before this thread. `shared` has an element for each thread, and all
// threads call it.
__device__ inline std::uint32_t add_before(std::uint32_t value, std::uint32_t* shared) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (unsigned distance = 1; distance < threads; distance *= 2) {
    const std::uint32_t other = threadIdx.x >= distance ? shared[threadIdx.x - distance] : 0;
    __syncthreads();
    const std::uint32_t sum = shared[threadIdx.x] + other;
    shared[threadIdx.x] = sum < other ? no_number : sum;  // saturates: only invalid blocks have such sums
    __syncthreads();
  }
  const std::uint32_t before = threadIdx.x == 0 ? 0 : shared[threadIdx.x - 1];
  __syncthreads();
  return before;
}

// Replaces each number by the sum before it; numbers[number] becomes the total. One thread block.
static __global__ void __launch_bounds__(threads) add_up_before(std::uint32_t* numbers, std::size_t number) {
  __shared__ std::uint32_t shared[threads];
  const std::size_t each = (number + threads - 1) / threads;
  const std::size_t begin = threadIdx.x * each;
  const std::size_t end = min(begin + each, number);
  std::uint32_t sum = 0;
  for (std::size_t i = begin; i < end; ++i) {
    const std::uint32_t more = sum + numbers[i];
    sum = more < sum ? no_number : more;
  }
  std::uint32_t before = add_before(sum, shared);
  for (std::size_t i = begin; i < end; ++i) {
    const std::uint32_t here = numbers[i];
    numbers[i] = before;
    before = before + here < before ? no_number : before + here;
  }
  if (threadIdx.x == threads - 1) {
    numbers[number] = before;
  }
}

}  // namespace gradientflow::compute::cuda

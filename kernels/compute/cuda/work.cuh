// Division of a list of calls among a kernel's threads.
//
// A body is the work of a kernel on n neighboring elements: load<n>(i) reads the elements from i on, and
// finish<n>(elements, i) computes and stores. Between the two, a thread issues further loads, so that it does not wait
// for each access separately. n is Body::width if body.is_aligned() and all n elements exist, otherwise 1.
#pragma once

#include <cstddef>
#include <cstdint>

#include "call_list.hpp"
#include "element.cuh"
#include "memory.cuh"

namespace gradientflow::compute::cuda {

constexpr unsigned threads = 256;  // threads of a block

// One block of the work: in a call list, norm_block elements at most.
struct Block {
  std::size_t call;
  std::size_t begin;  // first element in that call
  unsigned count;
};

// Finds a block by its number, counted from the first block of this list.
template <class Call>
__device__ Block find_block(const CallList<Call>& list, std::size_t block) {
  block += list.first_block[0];
  std::size_t low = 0;
  std::size_t high = list.number;
  while (high - low > 1) {  // first_block[low] <= block < first_block[high]
    const std::size_t middle = low + (high - low) / 2;
    (list.first_block[middle] <= block ? low : high) = middle;
  }
  const std::size_t begin = (block - list.first_block[low]) * norm_block;
  const std::size_t left = list.calls[low].count - begin;
  return {low, begin, static_cast<unsigned>(left < norm_block ? left : norm_block)};
}

// Returns this thread block's block of `count` elements, divided into blocks of `size`.
template <std::size_t size>
__device__ Block block_of(std::size_t count) {
  const std::size_t begin = blockIdx.x * size;
  return {0, begin, static_cast<unsigned>(count - begin < size ? count - begin : size)};
}

// Processes the elements of `block` with all threads of the thread block, at most `packs` packs each.
template <unsigned packs, class Body>
__device__ void for_each_element(const Body& body, const Block& block) {
  constexpr unsigned width = Body::width;
  if (block.count == packs * threads * width && body.is_aligned()) {
    typename Body::template Elements<width> elements[packs];
    const std::size_t first = block.begin + threadIdx.x * width;
#pragma unroll
    for (unsigned p = 0; p < packs; ++p) {
      elements[p] = body.template load<width>(first + p * threads * width);
    }
#pragma unroll
    for (unsigned p = 0; p < packs; ++p) {
      body.template finish<width>(elements[p], first + p * threads * width);
    }
  } else {
#pragma unroll 1
    for (unsigned k = threadIdx.x; k < block.count; k += threads) {
      body.template finish<1>(body.template load<1>(block.begin + k), block.begin + k);
    }
  }
}

}  // namespace gradientflow::compute::cuda

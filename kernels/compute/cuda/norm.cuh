// Sums over the elements of a call, added up as ../chunks.hpp says, in two kernels: the first adds up each block of
// norm_block elements in float32, the second the blocks of each call in float64.
//
// A team of norm_lanes / width threads adds up a block. Each thread has `width` neighboring lanes and reads the block
// row by row. So threads load whole packs only, each lane adds its elements in their order, and threads exchange data
// only to add the lanes of a block.
#pragma once

#include <algorithm>
#include <cstddef>

#include "launch.cuh"
#include "work.cuh"

namespace gradientflow::compute::cuda {

template <int width>
constexpr unsigned team_size = norm_lanes / width;

// Adds the lanes by halves: first across threads, then within each thread. The team's first thread gets the sum. All
// threads of the warp call it.
template <int width>
__device__ float add_lanes(Pack<float, width> lanes) {
#pragma unroll
  for (unsigned distance = team_size<width> / 2; distance > 0; distance /= 2) {
#pragma unroll
    for (int i = 0; i < width; ++i) {
      lanes[i] += __shfl_xor_sync(0xffffffffU, lanes[i], distance);
    }
  }
#pragma unroll
  for (int distance = width / 2; distance > 0; distance /= 2) {
#pragma unroll
    for (int i = 0; i < distance; ++i) {
      lanes[i] += lanes[i + distance];
    }
  }
  return lanes[0];
}

// Adds this thread's packs of `rows` rows, from element i on, to the lanes. finish() returns the terms.
template <int rows, class Body>
__device__ void add_rows(const Body& body, std::size_t i, Pack<float, Body::width>& lanes) {
  constexpr int width = Body::width;
  typename Body::template Elements<width> elements[rows];
#pragma unroll
  for (int row = 0; row < rows; ++row) {
    elements[row] = body.template load<width>(i + row * norm_lanes);
  }
#pragma unroll
  for (int row = 0; row < rows; ++row) {
    const Pack<float, width> terms = body.template finish<width>(elements[row], i + row * norm_lanes);
#pragma unroll
    for (int lane = 0; lane < width; ++lane) {
      lanes[lane] += terms[lane];
    }
  }
}

// Adds up a block, and returns this thread's lanes.
template <class Body>
__device__ Pack<float, Body::width> add_block(const Body& body, const Block& block) {
  constexpr int width = Body::width;
  constexpr unsigned row_size = norm_lanes;
  const unsigned first = threadIdx.x % team_size<width> * width;
  const std::size_t begin = block.begin + first;
  Pack<float, width> lanes{};
  unsigned row = 0;  // first element of the row
  if (body.is_aligned()) {
#pragma unroll 1
    for (; block.count - row >= 4 * row_size; row += 4 * row_size) {
      add_rows<4>(body, begin + row, lanes);
    }
#pragma unroll 1
    for (; block.count - row >= row_size; row += row_size) {
      add_rows<1>(body, begin + row, lanes);
    }
  }
#pragma unroll 1
  for (; row < block.count; row += row_size) {
#pragma unroll
    for (int lane = 0; lane < width; ++lane) {
      if (row + first + lane < block.count) {
        const std::size_t i = begin + row + lane;
        lanes[lane] += body.template finish<1>(body.template load<1>(i), i)[0];
      }
    }
  }
  return lanes;
}

// Writes the sum of block b of the list to sums[b]. A Body is made from a call.
template <class Body, class Call>
__global__ void __launch_bounds__(threads, 3) add_blocks(CallList<Call> list, float* sums) {
  constexpr unsigned teams = threads / team_size<Body::width>;
  const std::size_t b = static_cast<std::size_t>(blockIdx.x) * teams + threadIdx.x / team_size<Body::width>;
  Pack<float, Body::width> lanes{};
  if (b < list.blocks) {
    const Block block = find_block(list, b);
    lanes = add_block(Body(list.calls[block.call]), block);
  }
  const float sum = add_lanes<Body::width>(lanes);
  if (b < list.blocks && threadIdx.x % team_size<Body::width> == 0) {
    sums[b] = sum;
  }
}

// Writes the sum of the blocks of call i to norms[i]. (Defined in norm.cu.)
void add_calls(const float* sums, const std::uint32_t* first_block, std::size_t number, std::size_t blocks,
               double* norms, Stream stream);

template <class Body, class Call>
void add_up(const CallList<Call>& list, double* norms, void* scratch, Stream stream) {
  constexpr unsigned teams = threads / team_size<Body::width>;
  auto* const sums = static_cast<float*>(scratch);
  launch(add_blocks<Body, Call>, (list.blocks + teams - 1) / teams, threads, stream, list, sums);
  add_calls(sums, list.first_block, list.number, list.blocks, norms, stream);
}

}  // namespace gradientflow::compute::cuda

// Definitions shared by the kernels of top_k.hpp.
#pragma once

#include <algorithm>
#include <cstddef>

#include "../top_k_rules.hpp"
#include "launch.cuh"
#include "prefix_sums.cuh"
#include "top_k.hpp"
#include "work.cuh"

namespace gradientflow::compute::cuda {

constexpr auto sentence = "the gradients and entries of sparse communication are float16, bfloat16 or float32";
constexpr unsigned own = 8;                   // neighboring elements that a thread has
constexpr std::size_t group = threads * own;  // elements of a thread block
constexpr std::size_t words_of_group = group / 32;
constexpr unsigned most_blocks = 1024;  // largest grid of a kernel whose threads stride through a layer

inline std::size_t groups_of(std::size_t count) { return (count + group - 1) / group; }
inline std::size_t strides(std::size_t count) {
  return std::min<std::size_t>((count + threads - 1) / threads, most_blocks);
}

}  // namespace gradientflow::compute::cuda

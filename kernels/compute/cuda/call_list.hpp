// Lists of calls, each on its own memory, that one kernel launch serves. A launch takes as long as reading a megabyte
// or more on the device, so a launch for every chunk or tensor would be slow.
//
// Kernels divide the work into blocks of norm_block elements, counted through all calls. The calls and the numbers of
// their first blocks are in device memory; the caller keeps both until the kernels have run. A part of a list is a list
// too: calls + k and first_block + k, the number of calls in the part, and the number of their blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "../../base/dtype.hpp"
#include "../chunks.hpp"

namespace gradientflow::compute::cuda {

template <class Call>
struct CallList {
  const Call* calls;
  const std::uint32_t* first_block;  // first_blocks() of the calls
  std::size_t number;
  std::size_t blocks;  // blocks of these calls: first_block[number] - first_block[0]
  DType dtype;         // dtype of the gradients, the same in all calls
};

// Returns, for each call, the number of blocks of all calls before it; the last entry is the number of blocks of all
// calls.
template <class Call>
[[nodiscard]] std::vector<std::uint32_t> first_blocks(std::span<const Call> calls) {
  std::vector<std::uint32_t> first{0};
  for (const Call& call : calls) {
    first.push_back(first.back() + static_cast<std::uint32_t>((call.count + norm_block - 1) / norm_block));
  }
  return first;
}

// Returns the bytes of device memory in which a list's kernels add up norms. Each stream needs memory of its own.
template <class Call>
[[nodiscard]] std::size_t scratch_bytes(const CallList<Call>& list) {
  return list.blocks * sizeof(float);
}

}  // namespace gradientflow::compute::cuda

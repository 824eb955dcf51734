// Lists of calls, each on its own memory, that one kernel launch serves: a launch takes as long as the device needs to
// read a megabyte or more, so a launch for every chunk or tensor would be slow.
//
// The calls are in device memory, and so are the numbers by which the kernels divide the work: into blocks of
// norm_block elements, counted through all calls. Whoever makes a list keeps both until the kernels have run. A part of
// a list is a list: calls + k and first_block + k, the number of calls, and the number of their blocks.
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
  std::size_t blocks;  // of these calls: first_block[number] - first_block[0]
  DType dtype;         // of the gradients, the same in all calls
};

// For each call, the number of blocks of all calls before it; in a last entry, that of all calls.
template <class Call>
[[nodiscard]] std::vector<std::uint32_t> first_blocks(std::span<const Call> calls) {
  std::vector<std::uint32_t> first{0};
  for (const Call& call : calls) {
    first.push_back(first.back() + static_cast<std::uint32_t>((call.count + norm_block - 1) / norm_block));
  }
  return first;
}

// Bytes of device memory in which a list's kernels add up norms. Calls in different streams need their own.
template <class Call>
[[nodiscard]] std::size_t scratch_bytes(const CallList<Call>& list) {
  return list.blocks * sizeof(float);
}

}  // namespace gradientflow::compute::cuda

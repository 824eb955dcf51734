// The kernels of ../top_k.hpp on a CUDA device: the same calls, the same bits.
//
// All memory is the device's, blocks begin at multiples of 4 bytes, and all work is put into the stream. Nothing waits:
// results stay in memory of the device, too. Invalid numbers in a call are errors as on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../top_k.hpp"
#include "stream.hpp"

namespace gradientflow::compute::cuda {

// Bytes of scratch memory. Calls in different streams need their own.
[[nodiscard]] std::size_t scratch_bytes(const Select& call);
[[nodiscard]] std::size_t scratch_bytes(const Combine& call);

// *selected, on the device, becomes what the CPU's select returns.
void select(const Select& call, Selected* selected, void* scratch, Stream stream);

struct Combined {
  std::uint64_t written;  // elements
  std::uint64_t bad;      // 1 + the number of the first invalid block, and then nothing is written; 0: none
};

// *combined, on the device, becomes what the CPU's combine returns or throws. The pointers to the blocks are read
// before this returns.
void combine(const Combine& call, Combined* combined, void* scratch, Stream stream);

}  // namespace gradientflow::compute::cuda

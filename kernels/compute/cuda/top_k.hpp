// Kernels of ../top_k.hpp on a CUDA device: the same calls, the same bits.
//
// All memory is the device's, blocks begin at multiples of 4 bytes, and all work is put into the stream. No call waits,
// because results, too, stay in memory of the device. Invalid numbers in a call are errors as on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../top_k.hpp"
#include "stream.hpp"

namespace gradientflow::compute::cuda {

// Return the bytes of scratch memory. Each stream needs memory of its own.
[[nodiscard]] std::size_t scratch_bytes(const Select& call);
[[nodiscard]] std::size_t scratch_bytes(const Combine& call);

// Writes the CPU's result to *selected, on the device.
void select(const Select& call, Selected* selected, void* scratch, Stream stream);

struct Combined {
  std::uint64_t written;  // elements written
  std::uint64_t bad;      // 0: all blocks are valid; otherwise no gradient is written: 1 + the first invalid block
};

// Writes the CPU's result or error to *combined, on the device. Reads the pointers to the blocks before it returns.
void combine(const Combine& call, Combined* combined, void* scratch, Stream stream);

}  // namespace gradientflow::compute::cuda

// Kernels of ../kernels.hpp on a CUDA device: the same bits, and the same errors. All memory of the operands is the
// device's, and all work is put into the stream; memory is accessed as chunks.hpp says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "../kernels.hpp"
#include "stream.hpp"

namespace gradientflow::compute::cuda {

// Largest number of sources, and of destinations, of reduce; it throws Error(value) for more.
inline constexpr std::size_t most_tensors = 64;

void reduce(std::span<void* const> destinations, std::span<const void* const> sources, std::size_t count,
            const Reduction& reduction, Stream stream);

void cast(void* destination, DType destination_dtype, const void* source, DType source_dtype, std::size_t count,
          float scale, Stream stream);

// Writes the count to *found, on the device.
void count_nonfinite(const void* source, DType dtype, std::size_t count, std::uint64_t* found, Stream stream);

}  // namespace gradientflow::compute::cuda

// Streams of a CUDA device as numbers.
#pragma once

#include <cstdint>

#include "../kernels/compute/cuda/stream.hpp"

namespace gradientflow::bindings {

using Number = std::uintptr_t;

// Returns the stream with CUDA's own number, which frameworks give.
inline compute::cuda::Stream stream_of(Number number) {
  return reinterpret_cast<compute::cuda::Stream>(number);  // NOLINT(performance-no-int-to-ptr): frameworks give numbers
}

}  // namespace gradientflow::bindings

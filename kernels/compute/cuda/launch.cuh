// Start of kernels, and conversion of CUDA's errors to ours.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <limits>
#include <string>
#include <type_traits>

#include "../../base/error.hpp"
#include "stream.hpp"

namespace gradientflow::compute::cuda {

inline void check(cudaError_t status) {
  if (status != cudaSuccess) {
    (void)cudaGetLastError();  // a later call must not report it
    throw Error(status == cudaErrorMemoryAllocation ? ErrorKind::memory : ErrorKind::system,
                std::string("CUDA: ") + cudaGetErrorString(status));
  }
}

// Puts a kernel of `blocks` thread blocks into the stream, unless `blocks` is 0.
template <class... Parameters>
void launch(void (*kernel)(Parameters...), std::size_t blocks, unsigned threads, Stream stream,
            const std::type_identity_t<Parameters>&... arguments) {
  if (blocks == 0) {
    return;
  }
  if (blocks > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    throw Error(ErrorKind::value, "CUDA: " + std::to_string(blocks) + " thread blocks are too many for one kernel");
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(threads);
  config.stream = static_cast<cudaStream_t>(stream);
  check(cudaLaunchKernelEx(&config, kernel, arguments...));
}

}  // namespace gradientflow::compute::cuda

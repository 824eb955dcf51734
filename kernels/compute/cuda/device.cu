#include "device.hpp"
#include "launch.cuh"

namespace gradientflow::compute::cuda {

int device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();  // not for a later call to find
    return 0;
  }
  return count;
}

DeviceMemory::DeviceMemory(std::size_t bytes) : data_(nullptr), bytes_(bytes) {
  void* data = nullptr;
  check(cudaMalloc(&data, bytes));
  data_ = static_cast<std::byte*>(data);
}

DeviceMemory::~DeviceMemory() { (void)cudaFree(data_); }

void copy(void* destination, const void* source, std::size_t bytes, Stream stream) {
  check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)));
}

void synchronize(Stream stream) { check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream))); }

}  // namespace gradientflow::compute::cuda

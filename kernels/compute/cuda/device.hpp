// CUDA devices and their memory.
//
// The headers of this folder include none of CUDA's, so that any layer may use them; the functions are there only if
// the library was built with CUDA, as _build_info.json and gradientflow._core.cuda.built say. All work is for the
// current device of the calling thread and, where there is a stream, put into that stream: nothing here waits for the
// device unless it says so.
//
// What CUDA reports is thrown as Error(system), or Error(memory) where the device has no memory left. Errors of kernels
// that have started are reported by a later call.
#pragma once

#include <cstddef>

namespace gradientflow::compute::cuda {

using Stream = void*;  // a cudaStream_t; nullptr: the default stream

[[nodiscard]] int device_count() noexcept;  // 0 where there is no driver

// Memory of the current device. To allocate and to free it waits for the device.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes);
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

// A copy between host and device, in either direction, or on the device. Pageable memory of the host may be waited for.
void copy(void* destination, const void* source, std::size_t bytes, Stream stream);

// Waits for all that was put into the stream.
void synchronize(Stream stream);

}  // namespace gradientflow::compute::cuda

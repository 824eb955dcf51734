#include "pool_memory.hpp"

#include <cstdint>
#include <cstring>

#include "../../compute/kernels.hpp"

namespace gradientflow::engine {

PoolMemory::PoolMemory(Communicator& communicator, std::optional<int> device, std::size_t bytes, std::size_t more)
    : device_(device) {
  if (device_) {
    on_device_ = communicator.allocate_on_device(*device_, bytes);
  } else {
    on_host_ = communicator.allocate(bytes + more);
  }
}

void PoolMemory::clear(std::byte* begin, std::size_t bytes, compute::cuda::Stream stream) const {
  if (device_) {
    const compute::cuda::UseDevice use(*device_);
    compute::cuda::runtime().clear(begin, bytes, stream);
  } else {
    std::memset(begin, 0, bytes);
  }
}

std::size_t PoolMemory::count_nonfinite(const std::byte* begin, DType dtype, std::size_t count,
                                        compute::cuda::Stream stream) const {
  if (!device_) {
    return compute::count_nonfinite(begin, dtype, count);
  }
  const compute::cuda::UseDevice use(*device_);
  const compute::cuda::DeviceMemory found(sizeof(std::uint64_t));
  std::uint64_t number = 0;
  compute::cuda::runtime().count_nonfinite(begin, dtype, count, reinterpret_cast<std::uint64_t*>(found.data()), stream);
  compute::cuda::runtime().copy(&number, found.data(), sizeof number, stream);
  compute::cuda::runtime().synchronize(stream);
  return number;
}

}  // namespace gradientflow::engine

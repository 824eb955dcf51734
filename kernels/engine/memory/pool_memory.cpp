#include "pool_memory.hpp"

#include <cstring>

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

}  // namespace gradientflow::engine

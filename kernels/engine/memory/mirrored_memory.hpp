// Pinned memory of the host and as much memory of a device, for small data that is copied between them in every
// iteration: such copies are asynchronous.
#pragma once

#include <cstddef>
#include <memory>

#include "../../compute/cuda/owned.hpp"
#include "../../transport/node/memory_map.hpp"

namespace gradientflow::engine {

class MirroredMemory {
 public:
  MirroredMemory() = default;  // empty

  // Allocates on the current device.
  explicit MirroredMemory(std::size_t bytes) {
    if (bytes > 0) {
      on_host_ = transport::MemoryMap::create(bytes);
      on_host_.seal();
      pinned_ = std::make_unique<compute::cuda::Pinned>(on_host_.data(), bytes);
      on_device_ = compute::cuda::DeviceMemory(bytes);
    }
  }
  MirroredMemory(MirroredMemory&&) noexcept = default;
  // The memory of this object, which must not be in use, is unpinned before it is freed.
  MirroredMemory& operator=(MirroredMemory&& other) noexcept {
    pinned_ = std::move(other.pinned_);
    on_host_ = std::move(other.on_host_);
    on_device_ = std::move(other.on_device_);
    return *this;
  }
  MirroredMemory(const MirroredMemory&) = delete;
  MirroredMemory& operator=(const MirroredMemory&) = delete;
  ~MirroredMemory() = default;

  [[nodiscard]] std::size_t bytes() const { return on_device_.bytes(); }
  [[nodiscard]] std::byte* on_host() const { return on_host_.data(); }
  [[nodiscard]] std::byte* on_device() const { return on_device_.data(); }

  // Put a copy of `bytes` bytes, from byte `begin` on, into the stream.
  void upload(std::size_t begin, std::size_t bytes, compute::cuda::Stream stream) const {
    if (bytes > 0) {
      compute::cuda::runtime().copy(on_device() + begin, on_host() + begin, bytes, stream);
    }
  }
  void download(std::size_t begin, std::size_t bytes, compute::cuda::Stream stream) const {
    if (bytes > 0) {
      compute::cuda::runtime().copy(on_host() + begin, on_device() + begin, bytes, stream);
    }
  }

 private:
  transport::MemoryMap on_host_;
  std::unique_ptr<compute::cuda::Pinned> pinned_;
  compute::cuda::DeviceMemory on_device_;
};

}  // namespace gradientflow::engine

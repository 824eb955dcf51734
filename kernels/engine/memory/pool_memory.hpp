// Memory of a pool: node memory of the host, or memory of a CUDA device, which the ranks of the node share as far as
// they can. Initially zeros.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "../../collective/on_device/device_segment.hpp"
#include "../calls/communicator.hpp"

namespace gradientflow::engine {

class PoolMemory {
 public:
  // Allocates `bytes` bytes on `device`; or on the host, followed there by `more` bytes. Collective.
  PoolMemory(Communicator& communicator, std::optional<int> device, std::size_t bytes, std::size_t more = 0);

  [[nodiscard]] std::byte* data() const { return device_ ? on_device_->mine() : on_host_->mine(); }
  [[nodiscard]] std::optional<int> device() const { return device_; }
  [[nodiscard]] const std::shared_ptr<transport::Segment>& on_host() const { return on_host_; }
  [[nodiscard]] const std::shared_ptr<collective::DeviceSegment>& on_device() const { return on_device_; }

  // Zeroes bytes of this memory, or of other memory on the same device or host; on a device, in the stream.
  void clear(std::byte* begin, std::size_t bytes, compute::cuda::Stream stream) const;

  // Counts the numbers from `begin` on that are infinite or NaN. Throws Error(type) for float64. On a device it waits
  // for the stream.
  [[nodiscard]] std::size_t count_nonfinite(const std::byte* begin, DType dtype, std::size_t count,
                                            compute::cuda::Stream stream) const;

 private:
  std::optional<int> device_;
  std::shared_ptr<transport::Segment> on_host_;
  std::shared_ptr<collective::DeviceSegment> on_device_;
};

}  // namespace gradientflow::engine

// Memory for the requests of one call.
#pragma once

#include <cstddef>
#include <memory>

#include "endpoint.hpp"

namespace gradientflow::transport {

// Buffer that is never freed if its endpoint may still use it, because a request was abandoned. Declare it before the
// requests that use it.
class Buffer {
 public:
  Buffer(const Endpoint& endpoint, std::size_t bytes)
      : endpoint_(endpoint), bytes_(std::make_unique<std::byte[]>(bytes)) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (endpoint_.has_abandoned_requests()) {
      static_cast<void>(bytes_.release());
    }
  }
  [[nodiscard]] std::byte* data() const noexcept { return bytes_.get(); }

 private:
  const Endpoint& endpoint_;
  std::unique_ptr<std::byte[]> bytes_;
};

}  // namespace gradientflow::transport

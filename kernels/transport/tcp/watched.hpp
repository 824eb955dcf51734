// A socket that closes itself, and what an epoll tells about it.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <utility>

namespace gradientflow::transport::tcp {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (descriptor_ >= 0) {
      close(descriptor_);
    }
  }
  [[nodiscard]] int get() const noexcept { return descriptor_; }

 private:
  int descriptor_ = -1;
};

// What the events of an epoll point at.
struct Watched {
  enum class Kind : std::uint8_t { listener, alarm, stranger, connection };
  explicit Watched(Kind kind) : watched_kind(kind) {}
  Kind watched_kind;
};

}  // namespace gradientflow::transport::tcp

// Target of an event of epoll.
#pragma once

#include <cstdint>

namespace gradientflow::transport::tcp {

struct Watched {
  enum class Kind : std::uint8_t { listener, alarm, unauthenticated, connection };
  explicit Watched(Kind kind) : watched_kind(kind) {}
  Kind watched_kind;
};

}  // namespace gradientflow::transport::tcp

// A word to a process outside of the connections that messages go through, and its answer. Of one whose connection has
// ended: whether it lives; otherwise somebody else listens at its address, or nobody does. To one that is taken for
// dead: that it is. The system of its host keeps that word for it, also while it is stopped, or does not read.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "../address.hpp"
#include "../descriptor.hpp"
#include "wire.hpp"

namespace gradientflow::transport::tcp {

class Probe {
 public:
  enum class Answer : std::uint8_t {
    none,
    refused,
    unreachable,
    excluded,  // it has taken this process for dead
    closed,    // it has read the word of an exclusion, and has nothing to say
  };

  // `greeting`: what this process says first in a connection to that one.
  Probe(const SocketAddress& address, const Greeting& greeting) : address_(address), greeting_(greeting) {}

  // Looks for an answer, and asks again where the last question has come to nothing. Never waits.
  [[nodiscard]] Answer look();
  // Whether the word has arrived at the other host.
  [[nodiscard]] bool has_arrived() const;

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] Answer begin();
  [[nodiscard]] Answer greet();
  [[nodiscard]] Answer listen();
  [[nodiscard]] Answer failed(int code);

  SocketAddress address_;
  Greeting greeting_;
  Descriptor socket_;
  bool has_greeted_ = false;
  std::array<std::byte, sizeof(Header)> reply_{};
  std::size_t received_ = 0;
  Clock::time_point next_{};
};

}  // namespace gradientflow::transport::tcp

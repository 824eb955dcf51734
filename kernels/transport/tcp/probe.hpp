// Question or notice to a process, outside of the connections for messages, and its answer. A process whose connection
// has ended is asked if it lives; if it has died, another process listens at its address, or none does. An excluded
// process is told that it is taken for dead. The system of its host keeps this notice, even while the process is
// stopped or does not read.
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
    excluded,  // the peer has taken this process for dead
    closed,    // the peer has read the notice that it is excluded, and has nothing to say
  };

  // `greeting`: the first bytes of this process in the connection.
  Probe(const SocketAddress& address, const Greeting& greeting) : address_(address), greeting_(greeting) {}

  // Looks for an answer, and asks again if the last question has failed. Never waits.
  [[nodiscard]] Answer look();
  // Reports whether the notice has arrived at the peer's host.
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

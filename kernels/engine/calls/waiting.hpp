// Deadlines and timeouts of waits.
#pragma once

#include <chrono>
#include <cmath>
#include <exception>
#include <optional>

#include "../../base/error.hpp"
#include "handle.hpp"

namespace gradientflow::engine {

using Deadline = std::optional<Times::Clock::time_point>;

struct TimeOver : std::exception {};  // the iteration continues

// Waits for a call and throws its error, or TimeOver if the deadline passes first.
inline void await(Handle& handle, Deadline deadline) {
  if (!handle.done_by(deadline)) {
    throw TimeOver();
  }
  handle.wait({});
}

inline void check_timeout(std::optional<double> timeout) {
  if (timeout && std::isnan(*timeout)) {
    throw Error(ErrorKind::value, "timeout is not a number");
  }
}

}  // namespace gradientflow::engine

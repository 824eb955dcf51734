// Waiting for the end of an iteration, from any thread, with an optional timeout.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <mutex>
#include <optional>

#include "../../base/error.hpp"
#include "../../base/text.hpp"
#include "handle.hpp"

namespace gradientflow::engine {

using Deadline = std::optional<Times::Clock::time_point>;

struct TimeOver : std::exception {};  // and the iteration goes on

// Waits for a call and throws its error, or TimeOver if the deadline passes first.
inline void await(Handle& handle, Deadline deadline) {
  if (!handle.done_by(deadline)) {
    throw TimeOver();
  }
  handle.wait({});
}

// Ends an iteration by `end(deadline)`, one thread at a time, unless `iteration()` shows that another thread has ended
// it meanwhile. Throws Error(timeout) if the timeout, in seconds, passes first: the iteration goes on, and can be
// waited for again.
template <class Iteration, class End>
void wait_for_end(std::timed_mutex& waiting, std::optional<double> timeout, Iteration iteration, End end) {
  const auto awaited = iteration();
  std::unique_lock one_at_a_time(waiting, std::defer_lock);
  Deadline deadline;
  bool in_time = true;
  if (timeout) {
    deadline = Times::Clock::now() + std::chrono::duration_cast<Times::Clock::duration>(
                                         std::chrono::duration<double>(std::clamp(*timeout, 0.0, 1e9)));
    in_time = one_at_a_time.try_lock_until(*deadline);
  } else {
    one_at_a_time.lock();
  }
  if (iteration() != awaited) {
    return;
  }
  try {
    if (!in_time) {
      throw TimeOver();
    }
    end(deadline);
  } catch (const TimeOver&) {
    throw Error(ErrorKind::timeout,
                "the gradients were not averaged within " + format_number(timeout.value_or(0.0)) + " s; it goes on");
  }
}

inline void check_timeout(std::optional<double> timeout) {
  if (timeout && std::isnan(*timeout)) {
    throw Error(ErrorKind::value, "timeout is not a number");
  }
}

}  // namespace gradientflow::engine

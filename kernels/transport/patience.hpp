// Waiting for a transport that progresses only when it is called. The rank polls, then yields its core between polls,
// then sleeps between them, so that other threads can use the core.
#pragma once

#include <chrono>
#include <optional>

#include "yields.hpp"

namespace gradientflow::transport {

class Patience {
 public:
  using Clock = std::chrono::steady_clock;

  // `seconds`: limit of the wait. `awake`: time until which it does not sleep, for calls that end soon. `expected`:
  // duration of the last wait; after a long wait, this wait sleeps from its beginning, and longer.
  explicit Patience(double seconds, Clock::time_point awake = {}, Clock::duration expected = {});

  // Returns the patience of a thread that only drives transfers of others: it may sleep at once, and waiting threads
  // come first.
  [[nodiscard]] static Patience in_background() {
    Patience patience(1e9);
    patience.is_in_background_ = true;
    return patience;
  }
  [[nodiscard]] bool is_in_background() const { return is_in_background_; }

  // Lets a little time pass, more the longer the wait has lasted. Returns true from time to time, for the caller to
  // look for failures.
  bool pause();

  // For transports that wake a waiting thread. polls() yields the core, and reports whether this thread still polls,
  // for up to `spin`. Call has_slept() after each sleep; it returns the same as pause().
  bool polls(Clock::duration spin);
  bool has_slept();

  [[nodiscard]] bool over() const;

  // Returns the duration of the wait; nothing if the wait has only polled.
  [[nodiscard]] std::optional<Clock::duration> lasted() const {
    return start_ == Clock::time_point{} ? std::nullopt : std::optional(Clock::now() - start_);
  }

 private:
  bool has_to_look(Clock::time_point now);

  double seconds_;
  Clock::time_point awake_;
  bool sleeps_;
  bool is_in_background_ = false;
  long nap_nanoseconds_;
  int polls_ = 0;
  Clock::time_point start_{};  // time of the first yield or nap
  Clock::time_point looked_{};
  Yields yields_;
};

}  // namespace gradientflow::transport

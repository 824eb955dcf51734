// How a rank waits for a transport that has to be called for anything to go on: it polls, then yields its core
// between polls, then sleeps between them, so that whoever shares the core can work.
#pragma once

#include <chrono>
#include <optional>

namespace gradientflow::transport {

class Patience {
 public:
  using Clock = std::chrono::steady_clock;

  // `seconds`: how long the wait may take. `awake`: until when it does not sleep, for calls that are soon done.
  // `expected`: how long the last wait took; after a long one, this one sleeps from its beginning, and longer.
  explicit Patience(double seconds, Clock::time_point awake = {}, Clock::duration expected = {});

  // Of a thread that only carries on what others have begun: it may sleep at once, and those who wait come first.
  [[nodiscard]] static Patience in_background() {
    Patience patience(1e9);
    patience.is_for_nobody_ = true;
    return patience;
  }
  [[nodiscard]] bool is_for_nobody() const { return is_for_nobody_; }

  // Lets a little time pass, the more the longer the wait has lasted. Returns true from time to time, for the caller to
  // look for what can go wrong.
  bool pause();

  // For transports that wake a waiting thread: whether this one still polls, for up to `spin`; and, after each of its
  // sleeps, what pause() returns.
  bool polls(Clock::duration spin);
  bool has_slept();

  [[nodiscard]] bool over() const;

  // How long the wait has lasted; nothing if it has only polled.
  [[nodiscard]] std::optional<Clock::duration> lasted() const {
    return start_ == Clock::time_point{} ? std::nullopt : std::optional(Clock::now() - start_);
  }

 private:
  bool has_to_look(Clock::time_point now);

  double seconds_;
  Clock::time_point awake_;
  bool sleeps_;
  bool is_for_nobody_ = false;
  long nap_nanoseconds_;
  int polls_ = 0;
  Clock::time_point start_{};  // of the yields or naps
  Clock::time_point looked_{};
};

}  // namespace gradientflow::transport

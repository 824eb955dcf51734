// Time limit of a call.
#pragma once

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace gradientflow::transport {

class Until {
 public:
  using Clock = std::chrono::steady_clock;
  using Check = std::function<void()>;

  static constexpr std::chrono::milliseconds longest_nap{50};

  // `check` is called several times a second during a wait, and may throw to end it.
  explicit Until(double seconds, Check check = {})
      : seconds_(std::clamp(seconds, 0.0, 1e9)),
        end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds_))),
        check_(std::move(check)) {}

  // Returns a limit that starts now, with the same check.
  [[nodiscard]] Until from_now(double seconds) const { return Until(seconds, check_); }

  [[nodiscard]] double seconds() const noexcept { return seconds_; }
  [[nodiscard]] bool over() const { return Clock::now() >= end_; }
  [[nodiscard]] double remaining() const {
    return std::max(0.0, std::chrono::duration<double>(end_ - Clock::now()).count());
  }

  // Makes the check. Returns the time to wait before the next one; zero once the time is up.
  [[nodiscard]] std::chrono::milliseconds step(std::chrono::milliseconds longest = longest_nap) const {
    if (check_) {
      check_();
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now());
    return std::clamp(left, std::chrono::milliseconds(0), longest);
  }

  // Sleeps a little. Returns false if the time is up.
  [[nodiscard]] bool sleep(std::chrono::milliseconds longest) const {
    const auto nap = step(longest);
    std::this_thread::sleep_for(nap);
    return !over();
  }

  // Waits for a mutex. The lock is not held if the time is up.
  [[nodiscard]] std::unique_lock<std::mutex> lock(std::mutex& mutex) const {
    std::unique_lock lock(mutex, std::try_to_lock);
    for (auto nap = std::chrono::milliseconds(1); !lock && sleep(nap); nap = std::min(2 * nap, longest_nap)) {
      lock = std::unique_lock(mutex, std::try_to_lock);
    }
    return lock;
  }

  // Waits until a descriptor has any of these events (of poll), or an error. Returns false if the time is up.
  [[nodiscard]] bool ready(int descriptor, short events) const {
    while (true) {
      const auto wait = step();
      pollfd entry{descriptor, events, 0};
      if (poll(&entry, 1, static_cast<int>(wait.count())) > 0) {
        return true;
      }
      if (wait.count() == 0) {
        return false;
      }
    }
  }

 private:
  double seconds_;
  Clock::time_point end_;
  Check check_;
};

}  // namespace gradientflow::transport

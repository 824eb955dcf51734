// How a rank waits for the MPI library, which has to be called for anything to go on: it polls, then yields its core
// between polls, then sleeps between them, so that whoever shares the core can work.
#pragma once

#include <chrono>

namespace gradientflow::transport {

class Patience {
 public:
  // `seconds`: how long the wait may take. `slow`: waits have been long lately, so it sleeps at once.
  explicit Patience(double seconds, bool slow = false);

  // Lets a little time pass, the more the longer the wait has lasted. Returns whether it slept, which is the time to
  // look for what can go wrong.
  bool pause();

  [[nodiscard]] bool over() const;
  [[nodiscard]] bool slept() const { return nap_ > first_nap; }

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::microseconds first_nap{20};

  double seconds_;
  bool slow_;
  int polls_ = 0;
  Clock::time_point start_{};  // of the yields
  std::chrono::microseconds nap_ = first_nap;
};

}  // namespace gradientflow::transport

// How a rank waits for the MPI library, which has to be called for anything to go on: it polls, then yields its core
// between polls, then sleeps between them, so that whoever shares the core can work.
#pragma once

#include <chrono>

namespace gradientflow::transport {

class Patience {
 public:
  // `seconds`: how long the wait may take.
  explicit Patience(double seconds);

  // Lets a little time pass, the more the longer the wait has lasted. Returns whether it slept, which is the time to
  // look for what can go wrong.
  bool pause();

  [[nodiscard]] bool over() const;

 private:
  using Clock = std::chrono::steady_clock;

  double seconds_;
  int polls_ = 0;
  Clock::time_point start_{};  // of the yields
  std::chrono::microseconds nap_{20};
};

}  // namespace gradientflow::transport

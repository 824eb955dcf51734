// How a rank waits for the MPI library, which has to be called for anything to go on: it polls, then yields its core
// between polls, then sleeps between them, so that whoever shares the core can work.
#pragma once

#include <chrono>

namespace gradientflow::transport {

class Patience {
 public:
  using Clock = std::chrono::steady_clock;

  // `seconds`: how long the wait may take. `expected`: how long the last one took; after a long one the next is not
  // begun with polls, and sleeps are longer.
  explicit Patience(double seconds, Clock::duration expected = {});

  // Lets a little time pass, the more the longer the wait has lasted. Returns true from time to time, when it is time
  // to look for what can go wrong.
  bool pause();

  [[nodiscard]] bool over() const;

  // How long the wait has lasted; nothing if it was short.
  [[nodiscard]] Clock::duration lasted() const { return sleeps_ ? Clock::now() - start_ : Clock::duration{}; }

 private:
  double seconds_;
  bool sleeps_;
  long nap_nanoseconds_;
  int polls_ = 0;
  Clock::time_point start_{};  // of the yields or naps
  Clock::time_point looked_{};
};

}  // namespace gradientflow::transport

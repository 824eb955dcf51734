#include "patience.hpp"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace gradientflow::transport {
namespace {

constexpr int spins = 20;
constexpr std::chrono::microseconds yielding{100};  // a message between two hosts takes about half of it
constexpr std::chrono::microseconds longest_nap{100};

}  // namespace

Patience::Patience(double seconds, bool slow) : seconds_(std::min(seconds, 1e9)), slow_(slow) {}

bool Patience::pause() {
  if (polls_ < spins) {
    ++polls_;
    return false;
  }
  if (start_ == Clock::time_point{}) {
    start_ = Clock::now();
  }
  if (!slow_ && Clock::now() - start_ < yielding) {
    sched_yield();
    return false;
  }
  std::this_thread::sleep_for(nap_);
  nap_ = std::min(nap_ * 2, longest_nap);
  return true;
}

bool Patience::over() const {
  return start_ != Clock::time_point{} && std::chrono::duration<double>(Clock::now() - start_).count() > seconds_;
}

}  // namespace gradientflow::transport

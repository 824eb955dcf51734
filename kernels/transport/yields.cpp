#include "yields.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>

namespace gradientflow::transport {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto long_yield = 300us;  // longer than an awaited rank on this core works on a small message
constexpr int fewest_waits = 16;
constexpr int most_waits = 1024;

thread_local int waits_without_yields = 0;
thread_local int waits_after_long_yield = fewest_waits;  // doubles as long as yields stay long

}  // namespace

bool Yields::next() {
  if (!has_begun_) {
    has_begun_ = true;
    sleeps_ = waits_without_yields > 0;
    waits_without_yields -= sleeps_ ? 1 : 0;
  }
  if (sleeps_) {
    return false;
  }
  const auto start = Clock::now();
  sched_yield();
  if (Clock::now() - start > long_yield) {
    sleeps_ = true;
    waits_without_yields = waits_after_long_yield;
    waits_after_long_yield = std::min(2 * waits_after_long_yield, most_waits);
  } else {
    waits_after_long_yield = fewest_waits;
  }
  return true;
}

}  // namespace gradientflow::transport

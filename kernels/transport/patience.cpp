#include "patience.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <ctime>

namespace gradientflow::transport {
namespace {

using namespace std::chrono_literals;

constexpr int spins = 20;
constexpr auto yielding = 100us;     // about twice the time of a message between two hosts
constexpr auto a_long_wait = 250us;  // a segment takes 500 us on a link of 1 Gbit/s, and 50 us at 10 Gbit/s
constexpr auto looking = 5ms;

constexpr auto longest_nap = 1ms;
constexpr int naps_of_a_wait = 16;

// Returns the length of a nap: a quarter of the expected wait, later a sixteenth of the wait so far. Waking too often
// takes processor time from other ranks; sleeping too long delays this rank.
long nap_for(Patience::Clock::duration expected) {
  return static_cast<long>(
      std::chrono::nanoseconds(std::clamp<Patience::Clock::duration>(expected / 4, 20us, 200us)).count());
}

// To wake several threads at once, the system may delay a wake-up by 50 microseconds, as long as a nap itself.
void take_nap(long nanoseconds) {
  const int slack = prctl(PR_GET_TIMERSLACK);
  prctl(PR_SET_TIMERSLACK, 1000UL);
  const timespec nap{0, nanoseconds};
  nanosleep(&nap, nullptr);
  prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(std::max(slack, 1)));
}

}  // namespace

Patience::Patience(double seconds, Clock::time_point awake, Clock::duration expected)
    : seconds_(std::min(seconds, 1e9)),
      awake_(awake),
      sleeps_(expected > a_long_wait && Clock::now() > awake),
      nap_nanoseconds_(nap_for(expected)) {}

bool Patience::pause() {
  if (!sleeps_ && polls_ < spins) {
    ++polls_;
    return false;
  }
  const auto now = Clock::now();
  if (start_ == Clock::time_point{}) {
    start_ = looked_ = now;
  }
  if (!sleeps_ && (now - start_ < yielding || now < awake_) && yields_.next()) {
    return false;
  }
  sleeps_ = true;
  const auto by_now = std::min<Clock::duration>((now - start_) / naps_of_a_wait, longest_nap);
  take_nap(std::max(nap_nanoseconds_, static_cast<long>(std::chrono::nanoseconds(by_now).count())));
  return has_to_look(now);
}

bool Patience::has_to_look(Clock::time_point now) {
  if (now - looked_ < looking) {
    return false;
  }
  looked_ = now;
  return true;
}

bool Patience::polls(Clock::duration spin) {
  const auto now = Clock::now();
  if (start_ == Clock::time_point{}) {
    start_ = looked_ = now;
  }
  sleeps_ = sleeps_ || now - start_ >= spin || !yields_.next();
  return !sleeps_;
}

bool Patience::has_slept() { return has_to_look(Clock::now()); }

bool Patience::over() const {
  return start_ != Clock::time_point{} && std::chrono::duration<double>(Clock::now() - start_).count() > seconds_;
}

}  // namespace gradientflow::transport

#include "dssp.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "../base/error.hpp"

namespace gradientflow::policy {

Dssp::Dssp(int workers, std::int64_t low, std::int64_t high, Judged judged)
    : Ssp(workers, low), judged_(judged), high_(high), range_(high - low), granted_(static_cast<std::size_t>(workers)) {
  if (high < low) {
    throw Error(ErrorKind::value,
                "the high staleness, " + std::to_string(high) + ", is at least the low one, " + std::to_string(low));
  }
}

bool Dssp::is_released(std::size_t worker, bool is_within) {
  if (granted_[worker] > 0) {
    --granted_[worker];
    return true;
  }
  return is_within || judge(worker, paces()[worker].last);
}

bool Dssp::is_released_later(std::size_t worker, double seconds) {
  return judged_ == Judged::all && judge(worker, seconds);
}

// Reports whether the worker is granted iterations, and uses up the first of them.
bool Dssp::judge(std::size_t worker, double seconds) {
  const std::int64_t granted = iterations_ahead(worker, seconds);
  granted_[worker] = std::max<std::int64_t>(granted - 1, 0);
  return granted > 0;
}

std::int64_t Dssp::iterations_ahead(std::size_t worker, double seconds) const {
  const Pace& own = paces()[worker];
  const Pace* slowest = nullptr;
  for (const Pace& pace : paces()) {
    if (judged_ == Judged::fastest && pace.is_present && pace.pushes > own.pushes) {
      return 0;
    }
    if (pace.is_present && slowest == nullptr && pace.pushes == fewest()) {
      slowest = &pace;
    }
  }
  const std::int64_t most = std::min(range_, high_ - (own.pushes - fewest()) + 1);
  if (slowest == nullptr || slowest->pushes < 2 || own.pushes < 2) {
    return 0;
  }
  const double own_interval = own.last - own.before;
  const double interval = slowest->last - slowest->before;
  // Both times ascend, so the nearest push never moves back.
  std::int64_t best = 0;
  double nearest = std::numeric_limits<double>::infinity();
  std::int64_t push = 1;
  for (std::int64_t iterations = 0; iterations <= most; ++iterations) {
    const double time = seconds + static_cast<double>(iterations) * own_interval;
    const auto distance = [&](std::int64_t number) {
      return std::abs(slowest->last + static_cast<double>(number) * interval - time);
    };
    while (push <= range_ && distance(push + 1) < distance(push)) {
      ++push;
    }
    if (distance(push) < nearest) {
      nearest = distance(push);
      best = iterations;
    }
  }
  return best;
}

}  // namespace gradientflow::policy

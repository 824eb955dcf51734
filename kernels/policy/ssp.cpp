#include "ssp.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "../base/error.hpp"

namespace gradientflow::policy {

Ssp::Ssp(int workers, std::int64_t staleness)
    : paces_(static_cast<std::size_t>(workers)), staleness_(staleness), slowest_(paces_.size()) {
  if (staleness < 0) {
    throw Error(ErrorKind::value, "the staleness is 0 or more, not " + std::to_string(staleness));
  }
}

Answer Ssp::pushed(int worker, double seconds) {
  const auto index = static_cast<std::size_t>(worker);
  Pace& pace = paces_[index];
  pace.before = pace.last;
  pace.last = seconds;
  Answer answer{.apply = {{worker}}, .release = {}};
  const bool is_last_slowest = pace.pushes++ == fewest_ && --slowest_ == 0;
  if (is_last_slowest) {
    find_slowest();
  }
  if (pace.answered == pace.pushes - 1 && is_released(index, pace.pushes - fewest_ <= staleness_)) {
    ++pace.answered;
    answer.release.push_back(worker);
  }
  if (is_last_slowest) {
    follow_slowest(seconds, answer);
  }
  return answer;
}

Answer Ssp::departed(int worker, double seconds) {
  Answer answer;
  Pace& pace = paces_[static_cast<std::size_t>(worker)];
  pace.is_present = false;
  if (pace.pushes == fewest_ && --slowest_ == 0) {
    find_slowest();
    follow_slowest(seconds, answer);
  }
  return answer;
}

bool Ssp::is_released(std::size_t /*worker*/, bool is_within) { return is_within; }

bool Ssp::is_released_later(std::size_t /*worker*/, double /*seconds*/) { return false; }

void Ssp::find_slowest() {
  fewest_ = std::numeric_limits<std::int64_t>::max();
  for (const Pace& pace : paces_) {
    if (pace.is_present && pace.pushes <= fewest_) {
      slowest_ = pace.pushes == fewest_ ? slowest_ + 1 : 1;
      fewest_ = pace.pushes;
    }
  }
}

void Ssp::follow_slowest(double seconds, Answer& answer) {
  for (std::size_t worker = 0; worker < paces_.size(); ++worker) {
    Pace& pace = paces_[worker];
    const auto answer_one = [&] {
      ++pace.answered;
      answer.release.push_back(static_cast<int>(worker));
    };
    while (pace.is_present && pace.answered < pace.pushes && pace.answered + 1 - fewest_ <= staleness_) {
      answer_one();
    }
    if (pace.is_present && pace.answered == pace.pushes - 1 && is_released_later(worker, seconds)) {
      answer_one();
    }
  }
}

}  // namespace gradientflow::policy

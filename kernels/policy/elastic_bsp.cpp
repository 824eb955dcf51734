#include "elastic_bsp.hpp"

#include <algorithm>
#include <string>

#include "../base/error.hpp"
#include "barrier_search.hpp"
#include "smallest_window.hpp"

namespace gradientflow::policy {

ElasticBsp::ElasticBsp(int workers, std::int64_t lookahead)
    : paces_(static_cast<std::size_t>(workers)), lookahead_(lookahead) {
  if (lookahead < 1) {
    throw Error(ErrorKind::value, "the lookahead is 1 or more, not " + std::to_string(lookahead));
  }
}

Answer ElasticBsp::pushed(int worker, double seconds) {
  Pace& pace = paces_[static_cast<std::size_t>(worker)];
  ++pace.pushes;
  pace.before = pace.last;
  pace.last = seconds;
  Answer answer{.apply = {{worker}}, .release = {}};
  if (is_known_) {
    pace.left = std::max<std::int64_t>(pace.left - 1, 0);
    if (pace.left > 0) {
      answer_all(worker, pace, answer);
    }
    hold_barrier_if_complete(answer);
  } else {
    answer_all(worker, pace, answer);
    if (all_here([](const Pace& each) { return each.pushes >= 2; })) {
      search(seconds, answer);
    }
  }
  return answer;
}

Answer ElasticBsp::departed(int worker, double seconds) {
  paces_[static_cast<std::size_t>(worker)].is_present = false;
  Answer answer;
  if (all_here([](const Pace&) { return false; })) {  // no worker is left
    return answer;
  }
  if (is_known_) {
    hold_barrier_if_complete(answer);
  }
  if (answer.release.empty() && all_here([](const Pace& each) { return each.pushes >= 2; })) {
    search(seconds, answer);
    hold_barrier_if_complete(answer);
  }
  return answer;
}

bool ElasticBsp::all_here(bool (*is)(const Pace& pace)) const {
  return std::all_of(paces_.begin(), paces_.end(), [&](const Pace& pace) { return !pace.is_present || is(pace); });
}

void ElasticBsp::search(double seconds, Answer& answer) {
  times_.clear();
  std::size_t workers = 0;
  for (const Pace& pace : paces_) {
    if (!pace.is_present) {
      continue;
    }
    ++workers;
    const bool waits = pace.answered < pace.pushes;
    const double from = waits ? seconds : pace.last;
    if (waits) {
      times_.push_back(pace.last);
    }
    for (std::int64_t push = 1; push <= lookahead_ - (waits ? 1 : 0); ++push) {
      times_.push_back(from + static_cast<double>(push) * (pace.last - pace.before));
    }
  }
  const Barrier barrier = smallest_window(Predictions(times_, workers));
  is_known_ = true;
  auto pushes = barrier.pushes.begin();
  for (std::size_t worker = 0; worker < paces_.size(); ++worker) {
    Pace& pace = paces_[worker];
    if (!pace.is_present) {
      continue;
    }
    pace.left = static_cast<std::int64_t>(*pushes++) - (pace.answered < pace.pushes ? 1 : 0);
    if (pace.left > 0) {
      answer_all(static_cast<int>(worker), pace, answer);
    }
  }
}

void ElasticBsp::hold_barrier_if_complete(Answer& answer) {
  if (!all_here([](const Pace& pace) { return pace.left == 0; })) {
    return;
  }
  is_known_ = false;
  for (std::size_t worker = 0; worker < paces_.size(); ++worker) {
    Pace& pace = paces_[worker];
    if (pace.is_present) {
      answer_all(static_cast<int>(worker), pace, answer);
    }
    pace.pushes = pace.answered = 0;
  }
}

void ElasticBsp::answer_all(int worker, Pace& pace, Answer& answer) {
  for (; pace.answered < pace.pushes; ++pace.answered) {
    answer.release.push_back(worker);
  }
}

}  // namespace gradientflow::policy

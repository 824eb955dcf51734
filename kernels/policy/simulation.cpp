#include "simulation.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <queue>
#include <string>
#include <utility>

#include "../base/error.hpp"

namespace gradientflow::policy {
namespace {

class Simulator {
 public:
  Simulator(Policy& policy, const std::vector<std::span<const double>>& lengths, double until, bool keep_events)
      : policy_(policy), lengths_(lengths), until_(until), keep_events_(keep_events), pace_(lengths.size()) {
    found_.workers.resize(lengths.size());
    present_[0] = lengths.size();
    here_ = lengths.size();
    for (std::size_t worker = 0; worker < lengths.size(); ++worker) {
      if (!std::all_of(lengths[worker].begin(), lengths[worker].end(),
                       [](double length) { return std::isfinite(length) && length >= 0; })) {
        throw Error(ErrorKind::value, "the iterations of worker " + std::to_string(worker) +
                                          " take times that are not finite, or negative");
      }
      go_on(worker, 0);
    }
  }

  Simulation run() && {
    while (!next_.empty() && next_.top().first <= until_) {
      const auto [seconds, worker] = next_.top();
      next_.pop();
      found_.seconds = seconds;
      take_part(worker, seconds);
    }
    const bool is_over = next_.empty();
    if (!is_over) {
      found_.seconds = until_;
    }
    std::string waiting;
    for (std::size_t worker = 0; worker < pace_.size(); ++worker) {
      if (pace_[worker].waits) {
        found_.workers[worker].waited += found_.seconds - pace_[worker].pushed;
        waiting += (waiting.empty() ? "" : ", ") + std::to_string(worker);
      }
    }
    if (is_over && !waiting.empty()) {
      throw Error(ErrorKind::value, "the policy lets nobody go on: at " + std::to_string(found_.seconds) +
                                        " s nobody computes, and these workers wait: " + waiting);
    }
    return std::move(found_);
  }

 private:
  struct Pace {
    double pushed = 0;
    bool waits = false;
    bool here = true;
    bool leaves = false;
  };

  void take_part(std::size_t worker, double seconds) {
    Pace& pace = pace_[worker];
    const int number = static_cast<int>(worker);
    std::int64_t& pushes = found_.workers[worker].pushes;
    count(pushes, -1);
    const bool leaves = pace.leaves;
    Answer answer;
    if (leaves) {
      pace.here = false;
      --here_;
      answer = policy_.departed(number, seconds);
    } else {
      found_.workers[worker].computed += lengths_[worker][static_cast<std::size_t>(pushes)];
      count(++pushes, 1);
      pace.pushed = seconds;
      pace.waits = true;
      answer = policy_.pushed(number, seconds);
    }
    const bool is_barrier = here_ > 1 && answer.go_on.size() == here_;
    for (const int each : answer.go_on) {
      const auto index = static_cast<std::size_t>(each);
      if (!pace_.at(index).waits || !pace_[index].here) {
        continue;
      }
      tell_staleness(found_.workers[index].pushes - present_.begin()->first);
      found_.workers[index].waited += seconds - pace_[index].pushed;
      pace_[index].waits = false;
      go_on(index, seconds);
    }
    if (is_barrier) {
      found_.barriers.push_back(seconds);
    }
    if (keep_events_) {
      found_.events.push_back(
          {.worker = number, .seconds = seconds, .is_departure = leaves, .answer = std::move(answer)});
    }
  }

  void go_on(std::size_t worker, double seconds) {
    const auto done = static_cast<std::size_t>(found_.workers[worker].pushes);
    pace_[worker].leaves = done == lengths_[worker].size();
    next_.emplace(pace_[worker].leaves ? seconds : seconds + lengths_[worker][done], worker);
  }

  // How many of those here have so many pushes.
  void count(std::int64_t pushes, int change) {
    if (change > 0) {
      ++present_[pushes];
    } else if (--present_[pushes] == 0) {
      present_.erase(pushes);
    }
  }

  void tell_staleness(std::int64_t pushes) {
    const auto index = static_cast<std::size_t>(pushes);
    found_.staleness.resize(std::max(found_.staleness.size(), index + 1));
    ++found_.staleness[index];
  }

  using Time = std::pair<double, std::size_t>;
  Policy& policy_;
  const std::vector<std::span<const double>>& lengths_;
  double until_;
  bool keep_events_;
  std::vector<Pace> pace_;
  std::map<std::int64_t, std::size_t> present_;
  std::size_t here_;
  std::priority_queue<Time, std::vector<Time>, std::greater<>> next_;
  Simulation found_;
};

}  // namespace

Simulation simulate(Policy& policy, const std::vector<std::span<const double>>& lengths, double until,
                    bool keep_events) {
  return Simulator(policy, lengths, until, keep_events).run();
}

}  // namespace gradientflow::policy

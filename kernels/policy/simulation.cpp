#include "simulation.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <queue>
#include <string>
#include <utility>

#include "../base/error.hpp"

namespace gradientflow::policy {
namespace {

class Simulator {
 public:
  Simulator(Policy& policy, const std::vector<std::span<const double>>& lengths, double until, bool keep_events)
      : policy_(policy),
        lengths_(lengths),
        until_(until),
        keep_events_(keep_events),
        pace_(lengths.size()),
        found_{.account = Account(static_cast<int>(lengths.size())),
               .computed = std::vector<double>(lengths.size()),
               .seconds = 0,
               .events = {}} {
    for (std::size_t worker = 0; worker < lengths.size(); ++worker) {
      if (!std::all_of(lengths[worker].begin(), lengths[worker].end(),
                       [](double length) { return std::isfinite(length) && length >= 0; })) {
        throw Error(ErrorKind::value, "the iterations of worker " + std::to_string(worker) +
                                          " take times that are not finite, or negative");
      }
      release(worker, 0);
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
        waiting += (waiting.empty() ? "" : ", ") + std::to_string(worker);
      }
    }
    if (is_over && !waiting.empty()) {
      throw Error(ErrorKind::value, "the policy lets no worker continue: at " + std::to_string(found_.seconds) +
                                        " s no worker computes, and these workers wait: " + waiting);
    }
    return std::move(found_);
  }

 private:
  struct Pace {
    bool waits = false;
    bool leaves = false;
  };

  void take_part(std::size_t worker, double seconds) {
    Pace& pace = pace_[worker];
    Event event{.worker = static_cast<int>(worker), .seconds = seconds, .is_departure = pace.leaves, .answer = {}};
    if (event.is_departure) {
      event.answer = policy_.departed(event.worker, seconds);
    } else {
      found_.computed[worker] += lengths_[worker][pushes(worker)];
      pace.waits = true;
      event.answer = policy_.pushed(event.worker, seconds);
    }
    found_.account.note(event);
    for (const int each : event.answer.release) {
      const auto index = static_cast<std::size_t>(each);
      if (pace_.at(index).waits) {
        pace_[index].waits = false;
        release(index, seconds);
      }
    }
    if (keep_events_) {
      found_.events.push_back(std::move(event));
    }
  }

  void release(std::size_t worker, double seconds) {
    const std::size_t done = pushes(worker);
    pace_[worker].leaves = done == lengths_[worker].size();
    next_.emplace(pace_[worker].leaves ? seconds : seconds + lengths_[worker][done], worker);
  }

  [[nodiscard]] std::size_t pushes(std::size_t worker) const {
    return static_cast<std::size_t>(found_.account.pushes(static_cast<int>(worker)));
  }

  using Time = std::pair<double, std::size_t>;
  Policy& policy_;
  const std::vector<std::span<const double>>& lengths_;
  double until_;
  bool keep_events_;
  std::vector<Pace> pace_;
  std::priority_queue<Time, std::vector<Time>, std::greater<>> next_;
  Simulation found_;
};

}  // namespace

Simulation simulate(Policy& policy, const std::vector<std::span<const double>>& lengths, double until,
                    bool keep_events) {
  return Simulator(policy, lengths, until, keep_events).run();
}

}  // namespace gradientflow::policy

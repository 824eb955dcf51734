#include "zipline.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

namespace gradientflow::policy {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();

struct Push {
  double time;
  std::size_t worker;
  friend bool operator<(const Push& one, const Push& other) {
    return std::tie(one.time, one.worker) < std::tie(other.time, other.worker);
  }
};

std::vector<Push> sorted(const Predictions& predictions) {
  std::vector<Push> pushes;
  pushes.reserve(predictions.workers() * predictions.lookahead());
  for (std::size_t worker = 0; worker < predictions.workers(); ++worker) {
    for (const double time : predictions.of(worker)) {
      pushes.push_back({time, worker});
    }
  }
  std::sort(pushes.begin(), pushes.end());
  return pushes;
}

std::size_t nearest(std::span<const double> times, double middle) {
  std::size_t found = 0;
  for (std::size_t i = 1; i < times.size(); ++i) {
    if (std::abs(times[i] - middle) < std::abs(times[found] - middle)) {
      found = i;
    }
  }
  return found;
}

}  // namespace

Barrier grid_scan(const Predictions& predictions, bool everywhere) {
  std::size_t first = 0;
  for (std::size_t worker = 1; worker < predictions.workers(); ++worker) {
    if (predictions.of(worker)[0] < predictions.of(first)[0]) {
      first = worker;
    }
  }
  Best best{infinite, infinite};
  std::vector<std::size_t> best_set(predictions.workers());
  std::vector<std::size_t> set(predictions.workers());
  for (std::size_t designated = everywhere ? 0 : first; designated < predictions.workers(); ++designated) {
    for (std::size_t i = 0; i < predictions.lookahead(); ++i) {
      const double middle = predictions.of(designated)[i];
      double earliest = middle;
      double latest = middle;
      for (std::size_t worker = 0; worker < predictions.workers(); ++worker) {
        set[worker] = worker == designated ? i : nearest(predictions.of(worker), middle);
        earliest = std::min(earliest, predictions.of(worker)[set[worker]]);
        latest = std::max(latest, predictions.of(worker)[set[worker]]);
      }
      if (best.improved_by(latest - earliest, latest)) {
        best = {latest - earliest, latest};
        best_set = set;
      }
    }
    if (!everywhere) {
      break;
    }
  }
  for (std::size_t& push : best_set) {
    ++push;
  }
  return {best.spread, best.time, std::move(best_set)};
}

Barrier zipline(const Predictions& predictions, Removal removal) {
  Best best{infinite, infinite};
  std::vector<Push> set;  // the latest push of each worker so far, ascending
  set.reserve(predictions.workers() + 1);
  std::vector<std::size_t> met(predictions.workers(), 0);
  for (const Push& push : sorted(predictions)) {
    bool was_earliest = false;
    const std::size_t before = met[push.worker]++;
    if (before > 0) {
      auto old = set.begin();
      if (removal == Removal::bisect) {
        old = std::lower_bound(set.begin(), set.end(), Push{predictions.of(push.worker)[before - 1], push.worker});
      } else {
        old = std::find_if(set.begin(), set.end(), [&](const Push& each) { return each.worker == push.worker; });
      }
      was_earliest = old == set.begin();
      set.erase(old);
    }
    set.push_back(push);
    if (set.size() < predictions.workers()) {
      continue;
    }
    if (removal == Removal::traverse_all) {
      const double earliest = std::min_element(set.begin(), set.end())->time;
      if (best.improved_by(push.time - earliest, push.time)) {
        best = {push.time - earliest, push.time};
      }
    } else if ((was_earliest || before == 0) &&  // else the spread has grown (thesis, theorem 7)
               best.improved_by(push.time - set.front().time, push.time)) {
      best = {push.time - set.front().time, push.time};
    }
  }
  return with_pushes(predictions, best);
}

Barrier with_pushes(const Predictions& predictions, const Best& best) {
  Barrier barrier{best.spread, best.time, {}};
  barrier.pushes.reserve(predictions.workers());
  for (std::size_t worker = 0; worker < predictions.workers(); ++worker) {
    const std::span<const double> times = predictions.of(worker);
    const auto after = std::upper_bound(times.begin(), times.end(), best.time);
    barrier.pushes.push_back(static_cast<std::size_t>(after - times.begin()));
  }
  return barrier;
}

}  // namespace gradientflow::policy

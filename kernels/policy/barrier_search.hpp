// Search for the next barrier of ElasticBSP (elastic synchronization thesis, chapter 6). It selects one predicted push
// of each worker, with the smallest spread from the earliest to the latest of these pushes. The barrier is at the
// latest. All functions are pure functions of the predicted times; smallest_window is the search.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace gradientflow::policy {

// Predicted times of the next `lookahead` pushes of each worker: one row per worker, each in ascending order.
class Predictions {
 public:
  // Throws Error(value) unless there are workers and times, as many times for each worker, all finite, and each row in
  // ascending order.
  Predictions(std::span<const double> times, std::size_t workers);

  [[nodiscard]] std::size_t workers() const { return workers_; }
  [[nodiscard]] std::size_t lookahead() const { return lookahead_; }
  [[nodiscard]] std::span<const double> of(std::size_t worker) const {
    return times_.subspan(worker * lookahead_, lookahead_);
  }

 private:
  std::span<const double> times_;
  std::size_t workers_;
  std::size_t lookahead_;
};

// A barrier. Exact searches count each worker's predicted pushes up to it, so they agree on all fields.
struct Barrier {
  double spread;
  double time;
  std::vector<std::size_t> pushes;  // number of each worker's pushes up to the barrier, at least 1
};

// The smallest spread so far, and the earliest barrier with it.
struct Best {
  double spread;
  double time;
  [[nodiscard]] bool improved_by(double other_spread, double other_time) const {
    return other_spread < spread || (other_spread == spread && other_time < time);
  }
};

// Returns the barrier with each worker's number of pushes up to it.
[[nodiscard]] Barrier with_pushes(const Predictions& predictions, const Best& best);

}  // namespace gradientflow::policy

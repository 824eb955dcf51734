// The search for the next barrier of ElasticBSP (elastic synchronization thesis, chapter 6): select one predicted push
// of each worker such that the spread, from the earliest to the latest of them, is smallest. The barrier is at the
// latest. Pure functions of the predicted times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace gradientflow::policy {

// The predicted times of the next `lookahead` pushes of each worker: one row per worker, each in ascending order.
class Predictions {
 public:
  // Throws Error(value) unless there are workers and times, the same number of times for each worker, all finite, and
  // in ascending order in each row.
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

struct Barrier {
  double spread;
  double time;
  std::vector<std::size_t> pushes;  // by worker: number of pushes up to the barrier, at least 1
};

enum class Search : std::uint8_t {
  grid_scan,        // sets of the pushes nearest to each push of the earliest worker: heuristic
  full_grid_scan,   // the same for each push of every worker: nearly exact
  zipline,          // one pass over the sorted times, with a search for the earliest of the set at each
  zipline_opt,      // with that search only if the earliest was replaced
  zipline_opt_bs,   // and with the replaced push found by bisection
  smallest_window,  // our own: exact, in time proportional to the number of predictions, without sorting all of them
};

// The search named "grid_scan", ...; nothing for an unknown name.
[[nodiscard]] std::optional<Search> search_of(std::string_view name);

// The barrier with the smallest spread that this search finds, the earliest of equal ones. Exact searches count each
// worker's predicted pushes up to the barrier, so they agree on all of a Barrier.
[[nodiscard]] Barrier find_barrier(const Predictions& predictions, Search search = Search::smallest_window);

}  // namespace gradientflow::policy

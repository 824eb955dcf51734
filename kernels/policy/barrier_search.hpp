// When the next barrier of ElasticBSP falls (elastic synchronization thesis, chapter 6): of each worker one predicted
// push is chosen such that the spread, from the earliest to the latest of them, is smallest. The barrier falls with the
// latest. Pure functions of the predicted times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace gradientflow::policy {

// When each worker is expected to push next: `lookahead` times for each of `workers`, in a row for each, ascending.
class Predictions {
 public:
  // Throws Error(value) unless there are workers and times, as many for each, finite, ascending in each row.
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
  std::vector<std::size_t> pushes;  // of each worker up to the barrier, at least 1
};

enum class Search : std::uint8_t {
  grid_scan,        // the push nearest to each of the earliest worker's: heuristic
  full_grid_scan,   // the same, nearest to each push of any worker: nearly exact
  zipline,          // one pass over the sorted times, looking for the earliest of the set each time
  zipline_opt,      // looking for it only where the earliest is replaced
  zipline_opt_bs,   // and finding what is replaced by bisection
  smallest_window,  // ours: exact, in time proportional to the number of predictions, with no sort over all of them
};

// "grid_scan", ...; nothing for another name.
[[nodiscard]] std::optional<Search> search_of(std::string_view name);

// The smallest spread that this way finds; of equal ones the earliest barrier. Exact ones give each worker its latest
// predicted push that is not after the barrier, so that they agree on all of a Barrier.
[[nodiscard]] Barrier find_barrier(const Predictions& predictions, Search search = Search::smallest_window);

}  // namespace gradientflow::policy

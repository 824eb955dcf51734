#include "barrier_search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "../base/error.hpp"
#include "smallest_window.hpp"
#include "zipline.hpp"

namespace gradientflow::policy {

Predictions::Predictions(std::span<const double> times, std::size_t workers)
    : times_(times), workers_(workers), lookahead_(workers == 0 ? 0 : times.size() / workers) {
  if (workers == 0 || lookahead_ == 0 || lookahead_ * workers != times.size()) {
    throw Error(ErrorKind::value, std::to_string(times.size()) + " predicted times are not as many for each of " +
                                      std::to_string(workers) + " workers, and at least one");
  }
  for (std::size_t worker = 0; worker < workers; ++worker) {
    const std::span<const double> row = of(worker);
    if (!std::all_of(row.begin(), row.end(), [](double time) { return std::isfinite(time); }) ||
        !std::is_sorted(row.begin(), row.end())) {
      throw Error(ErrorKind::value,
                  "the predicted times of worker " + std::to_string(worker) + " are not finite and in ascending order");
    }
  }
}

std::optional<Search> search_of(std::string_view name) {
  constexpr std::pair<std::string_view, Search> names[] = {
      {"grid_scan", Search::grid_scan},
      {"full_grid_scan", Search::full_grid_scan},
      {"zipline", Search::zipline},
      {"zipline_opt", Search::zipline_opt},
      {"zipline_opt_bs", Search::zipline_opt_bs},
      {"smallest_window", Search::smallest_window},
  };
  for (const auto& [known, search] : names) {
    if (known == name) {
      return search;
    }
  }
  return {};
}

Barrier find_barrier(const Predictions& predictions, Search search) {
  switch (search) {
    case Search::grid_scan:
      return grid_scan(predictions, false);
    case Search::full_grid_scan:
      return grid_scan(predictions, true);
    case Search::zipline:
      return zipline(predictions, Removal::traverse_all);
    case Search::zipline_opt:
      return zipline(predictions, Removal::traverse);
    case Search::zipline_opt_bs:
      return zipline(predictions, Removal::bisect);
    case Search::smallest_window:
      break;
  }
  return smallest_window(predictions);
}

}  // namespace gradientflow::policy

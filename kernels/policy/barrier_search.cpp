#include "barrier_search.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "../base/error.hpp"

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

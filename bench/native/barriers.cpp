// The searches of the elastic synchronization thesis (algorithms 3 and 4, section 6.5.3), beside the core's own.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <gradientflow/base/error.hpp>
#include <gradientflow/policy/barrier_search.hpp>
#include <gradientflow/policy/smallest_window.hpp>
#include <limits>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "native.hpp"

namespace gradientflow::native {
namespace {

namespace py = pybind11;
using policy::Barrier;
using policy::Best;
using policy::Predictions;

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

// With `everywhere`, searches around the pushes of every worker in turn, not only of the earliest worker. Takes the
// earlier of two equally near pushes.
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

// Way to find and remove a worker's previous push in the set, when its next push replaces it.
enum class Removal : std::uint8_t {
  traverse_all,  // linear search, and a search for the earliest of the set each time
  traverse,      // linear search; looks at the earliest only if it was replaced
  bisect,        // binary search by (time, worker), because times can be equal; otherwise like `traverse`
};

// Sets that lack a worker do not count, unlike in the thesis' algorithm 4 as printed.
Barrier zipline(const Predictions& predictions, Removal removal) {
  Best best{infinite, infinite};
  std::vector<Push> set;  // latest push of each worker so far, ascending
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
    } else if ((was_earliest || before == 0) &&  // otherwise the spread has grown (thesis, theorem 7)
               best.improved_by(push.time - set.front().time, push.time)) {
      best = {push.time - set.front().time, push.time};
    }
  }
  return with_pushes(predictions, best);
}

Barrier search(const Predictions& predictions, const std::string& algorithm) {
  if (algorithm == "grid_scan" || algorithm == "full_grid_scan") {
    return grid_scan(predictions, algorithm == "full_grid_scan");
  }
  if (algorithm == "zipline") {
    return zipline(predictions, Removal::traverse_all);
  }
  if (algorithm == "zipline_opt") {
    return zipline(predictions, Removal::traverse);
  }
  if (algorithm == "zipline_opt_bs") {
    return zipline(predictions, Removal::bisect);
  }
  if (algorithm == "smallest_window") {
    return policy::smallest_window(predictions);
  }
  throw Error(ErrorKind::value, "there is no search '" + algorithm + "'");
}

// Gives (spread, time, pushes of each worker) for times of shape (workers, lookahead): a contiguous array of float64.
py::tuple find_barrier(const py::buffer& times, const std::string& algorithm) {
  const py::buffer_info view = times.request();
  if (!view.item_type_is_equivalent_to<double>() || PyBuffer_IsContiguous(view.view(), 'C') == 0) {
    throw Error(ErrorKind::type, "times have to be a contiguous array of float64");
  }
  const std::span<const double> all(static_cast<const double*>(view.ptr), static_cast<std::size_t>(view.size));
  const std::size_t workers = view.ndim == 2 ? static_cast<std::size_t>(view.shape[0]) : 0;
  const Barrier barrier = search(Predictions(all, workers), algorithm);
  return py::make_tuple(barrier.spread, barrier.time, barrier.pushes);
}

}  // namespace
}  // namespace gradientflow::native

PYBIND11_MODULE(barriers, module) {
  gradientflow::native::translate_errors();
  module.def("find_barrier", &gradientflow::native::find_barrier, pybind11::arg("times"), pybind11::arg("algorithm"));
}

// The searches of the elastic synchronization thesis (algorithms 3 and 4, section 6.5.3), for comparison.
#pragma once

#include <cstdint>

#include "barrier_search.hpp"

namespace gradientflow::policy {

// `everywhere`: searches around the pushes of every worker in turn, instead of only those of the earliest worker. Of
// equally near pushes the earlier one is taken.
[[nodiscard]] Barrier grid_scan(const Predictions& predictions, bool everywhere);

// How a worker's previous push is found in the set, and removed, when its next push replaces it.
enum class Removal : std::uint8_t {
  traverse_all,  // linear search, and a search for the earliest of the set each time
  traverse,      // linear search; the earliest is looked at only if it was replaced
  bisect,        // the same with a binary search by (time, worker), because times can be equal
};

// Sets that lack a worker do not count, unlike in the thesis' algorithm 4 as printed.
[[nodiscard]] Barrier zipline(const Predictions& predictions, Removal removal);

// The smallest spread so far, and the earliest barrier that has it.
struct Best {
  double spread;
  double time;
  [[nodiscard]] bool improved_by(double other_spread, double other_time) const {
    return other_spread < spread || (other_spread == spread && other_time < time);
  }
};

// Each worker's latest push that is not after the barrier.
[[nodiscard]] Barrier with_pushes(const Predictions& predictions, const Best& best);

}  // namespace gradientflow::policy

// The searches of the elastic synchronization thesis (algorithms 3 and 4, section 6.5.3), to compare with.
#pragma once

#include <cstdint>

#include "barrier_search.hpp"

namespace gradientflow::policy {

// `everywhere`: takes the pushes of every worker in turn for the middle, in place of the earliest worker's. Of equally
// near pushes the earlier one is taken.
[[nodiscard]] Barrier grid_scan(const Predictions& predictions, bool everywhere);

// How the push that a worker's next one replaces is removed from the set.
enum class Removal : std::uint8_t {
  traverse_all,  // and the earliest of the set is looked for each time
  traverse,      // the earliest is looked for where it is the one that was replaced
  bisect,        // the same, by (time, worker): times alone can be equal
};

// Sets that lack a worker do not count, other than in the thesis' algorithm 4 as printed.
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

// Exact search for the barrier, by an algorithm of our own.
//
// A window slides over the pushes of all workers in the order of their times. It contains the latest push of each
// worker so far. A linked list has the workers in the order of these pushes: the first worker's push is the earliest of
// the window, and a worker that pushes moves to the end. So each push takes constant time, and only a push of the first
// worker can make the window smaller.
//
// Pushes are not sorted all at once: the pushes of each worker are in order already. Time is cut into slabs in which
// each worker has about one push. The pushes of a slab, few enough for the first-level cache, are sorted into buckets
// of time.
#pragma once

#include "barrier_search.hpp"

namespace gradientflow::policy {

// Returns the barrier with the smallest spread, the earliest of equal barriers.
[[nodiscard]] Barrier smallest_window(const Predictions& predictions);

}  // namespace gradientflow::policy

// The exact search of our own.
//
// A window slides over the pushes of all workers in the order of their times; it has the latest push of each worker so
// far. A list has the workers in the order of these pushes: the first is the earliest of the window, and a worker that
// pushes goes to the end. So a push costs a constant time, and only one that takes the first place away can make the
// window smaller.
//
// The order needs no sort over everything: each worker's pushes are in order already. Time is cut into slabs in which
// each worker has about one push; the pushes of a slab, few enough for the nearest cache, are put into buckets of time.
#pragma once

#include "barrier_search.hpp"

namespace gradientflow::policy {

[[nodiscard]] Barrier smallest_window(const Predictions& predictions);

}  // namespace gradientflow::policy

// Workers of given speeds under a policy, event by event: no processes, no clock. Computing takes the given times, and
// all else none.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "policy.hpp"

namespace gradientflow::policy {

struct Event {
  int worker;
  double seconds;
  bool is_departure;
  Answer answer;
};

struct Simulation {
  struct Worker {
    std::int64_t pushes = 0;
    double computed = 0;  // seconds, in iterations that have ended
    double waited = 0;    // seconds, also where it still waits at the end
  };
  std::vector<Worker> workers;
  std::vector<std::int64_t> staleness;  // how often a worker went on so many pushes ahead of the slowest present one
  std::vector<double> barriers;         // when all workers that took part went on together
  double seconds = 0;                   // when it ended
  std::vector<Event> events;
};

// `lengths`: of each worker, how long its iterations compute. All begin at 0; each waits after its push until it may go
// on, and departs when it may after the last one. Ends then, or at `until`. Events at the same time come in the order
// of workers. Throws Error(value) when nobody computes, and some wait; and what the policy throws.
[[nodiscard]] Simulation simulate(Policy& policy, const std::vector<std::span<const double>>& lengths,
                                  double until = std::numeric_limits<double>::infinity(), bool keep_events = false);

}  // namespace gradientflow::policy

// Simulation of workers of given speeds under a policy, event by event: no processes, no clock. Only computing takes
// time, as given.
#pragma once

#include <limits>
#include <span>
#include <vector>

#include "account.hpp"
#include "policy.hpp"

namespace gradientflow::policy {

struct Simulation {
  Account account;
  std::vector<double> computed;  // by worker: seconds of computing, in iterations that have ended
  double seconds = 0;            // time of the end
  std::vector<Event> events;
};

// `lengths`: by worker, the seconds that each of its iterations computes. All workers begin at 0, wait after each push
// until they may go on, and depart when they may after the last one. The simulation ends then, or at `until`. Events at
// the same time come in the order of workers. Throws Error(value) when workers wait and none computes, and what the
// policy throws.
[[nodiscard]] Simulation simulate(Policy& policy, const std::vector<std::span<const double>>& lengths,
                                  double until = std::numeric_limits<double>::infinity(), bool keep_events = false);

}  // namespace gradientflow::policy

// Workers of given speeds under a policy, event by event: no processes, no clock. Computing takes the given times, and
// all else none.
#pragma once

#include <limits>
#include <span>
#include <vector>

#include "account.hpp"
#include "policy.hpp"

namespace gradientflow::policy {

struct Simulation {
  Account account;
  std::vector<double> computed;  // seconds of each worker, in iterations that have ended
  double seconds = 0;            // when it ended
  std::vector<Event> events;
};

// `lengths`: of each worker, how long its iterations compute. All begin at 0; each waits after its push until it may go
// on, and departs when it may after the last one. Ends then, or at `until`. Events at the same time come in the order
// of workers. Throws Error(value) when nobody computes, and some wait; and what the policy throws.
[[nodiscard]] Simulation simulate(Policy& policy, const std::vector<std::span<const double>>& lengths,
                                  double until = std::numeric_limits<double>::infinity(), bool keep_events = false);

}  // namespace gradientflow::policy

// Simulation of workers under a policy, event by event: no processes, no clock. Only computing takes time, in given
// lengths.
#pragma once

#include <limits>
#include <span>
#include <vector>

#include "account.hpp"
#include "policy.hpp"

namespace gradientflow::policy {

struct Simulation {
  Account account;
  std::vector<double> computed;  // seconds that each worker has computed, in iterations that have ended
  double seconds = 0;            // time of the end
  std::vector<Event> events;
};

// Simulates workers until all have departed, or until `until`. `lengths`: a row per worker, the seconds that each
// iteration computes. All workers begin at 0, wait after each push until they may continue, and depart after the answer
// to their last push. Events at the same time come in the order of workers. Throws Error(value) when workers wait and
// none computes, and the policy's errors.
[[nodiscard]] Simulation simulate(Policy& policy, const std::vector<std::span<const double>>& lengths,
                                  double until = std::numeric_limits<double>::infinity(), bool keep_events = false);

}  // namespace gradientflow::policy

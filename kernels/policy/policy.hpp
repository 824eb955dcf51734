// A policy of a parameter server: which pushes are applied together, and which workers may go on. It is told of pushes
// and departures, with their times, and looks at nothing else: no clock, no input or output. So a trace of events that
// was recorded replays to the same answers.
#pragma once

#include <vector>

namespace gradientflow::policy {

// What a policy answers to an event.
struct Answer {
  // Rounds, one after the other: workers, in ascending order, whose oldest pushes that are not applied yet are applied
  // now, together, as one mean.
  std::vector<std::vector<int>> apply;

  // Workers that may go on, once that is done.
  std::vector<int> go_on;

  bool operator==(const Answer&) const = default;
};

// Workers are 0, 1, ..., all of which take part at first. Times are seconds, from any beginning, and do not descend. A
// worker may push again before it may go on, when it does not wait for that. One that has departed pushes no more; what
// it has pushed is still to be applied.
class Policy {
 public:
  Policy() = default;
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;
  virtual ~Policy() = default;

  // A push of this worker has come, whole.
  virtual Answer pushed(int worker, double seconds) = 0;

  // This worker has left. Asked once for each.
  virtual Answer departed(int worker, double seconds) = 0;

  // Whether it may be asked in any thread, by one at a time. A policy in Python may not: in the main thread a signal's
  // handler could raise in it.
  [[nodiscard]] virtual bool is_for_any_thread() const { return true; }
};

}  // namespace gradientflow::policy

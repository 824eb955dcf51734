// A policy of a parameter server decides which pushes are applied together, and which workers may go on. It depends
// only on pushes and departures and their times: no clock, no input or output. So a recorded trace of events replays to
// the same answers.
#pragma once

#include <vector>

namespace gradientflow::policy {

// The answer of a policy to an event.
struct Answer {
  // Rounds, one after the other. A round is a list of workers, in ascending order: their oldest pushes that are not
  // applied yet are applied now, together, as one mean.
  std::vector<std::vector<int>> apply;

  // Workers that may go on once the rounds are applied.
  std::vector<int> go_on;

  bool operator==(const Answer&) const = default;
};

// Workers are 0, 1, ...; all are present at first. Times are seconds since any origin, and never decrease. A worker
// that does not wait for its answer may push again before it. A departed worker does not push again; its pushes must
// still be applied.
class Policy {
 public:
  Policy() = default;
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;
  virtual ~Policy() = default;

  // A push of this worker has arrived completely.
  virtual Answer pushed(int worker, double seconds) = 0;

  // This worker has departed. Called once for each.
  virtual Answer departed(int worker, double seconds) = 0;

  // Whether any thread may ask the policy, one at a time. Not for a policy in Python: in the main thread a signal
  // handler could raise an exception in it.
  [[nodiscard]] virtual bool is_for_any_thread() const { return true; }
};

}  // namespace gradientflow::policy

// Policies of a parameter server. A policy decides which pushes are applied together, and which workers may continue.
// It depends only on pushes and departures and their times: no clock, no input or output. So a recorded trace of events
// replays to the same answers.
#pragma once

#include <vector>

namespace gradientflow::policy {

// The answer of a policy to an event.
struct Answer {
  // Rounds, to be applied one after another. A round is a list of workers, in ascending order: the oldest unapplied
  // push of each of these workers is applied now, all together, as one mean.
  std::vector<std::vector<int>> apply;

  // Workers that may continue once the rounds are applied.
  std::vector<int> release;

  bool operator==(const Answer&) const = default;
};

// Policy for the workers 0, 1, ..., all present at first. Times are seconds since any origin, and never decrease. A
// worker that does not wait for its answer may push again before the answer. A departed worker does not push again; its
// pushes must still be applied.
class Policy {
 public:
  Policy() = default;
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;
  virtual ~Policy() = default;

  // Answers a push of this worker, which has arrived completely.
  virtual Answer pushed(int worker, double seconds) = 0;

  // Answers this worker's departure. Called once for each worker.
  virtual Answer departed(int worker, double seconds) = 0;

  // Reports whether any thread may call the policy, one thread at a time. False for a policy in Python, because in the
  // main thread a signal handler could raise an exception in it.
  [[nodiscard]] virtual bool is_for_any_thread() const { return true; }
};

}  // namespace gradientflow::policy

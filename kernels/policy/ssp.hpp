// Stale synchronous parallel: each push is applied when it arrives. A worker continues while it is at most `staleness`
// pushes ahead of the slowest present worker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy.hpp"

namespace gradientflow::policy {

class Ssp : public Policy {
 public:
  // Throws Error(value) for a negative staleness.
  Ssp(int workers, std::int64_t staleness);
  Answer pushed(int worker, double seconds) override;
  Answer departed(int worker, double seconds) override;

 protected:
  // Reports whether a worker continues after its push. `is_within`: the worker is within the bound. Called once for
  // each push, unless an earlier push is unanswered.
  virtual bool is_released(std::size_t worker, bool is_within);

  // Reports whether a waiting worker continues at a push of the slowest worker, although it is still beyond the bound.
  virtual bool is_released_later(std::size_t worker, double seconds);

  struct Pace {
    std::int64_t pushes = 0;
    std::int64_t answered = 0;  // number of answered pushes
    double last = 0;            // time of the last push
    double before = 0;          // time of the push before the last
    bool is_present = true;
  };
  [[nodiscard]] const std::vector<Pace>& paces() const { return paces_; }
  [[nodiscard]] std::int64_t fewest() const { return fewest_; }

 private:
  // Both functions visit all workers, but only when `fewest_` has changed. Every worker must have pushed before that,
  // so each push takes constant amortized time.
  void find_slowest();
  void follow_slowest(double seconds, Answer& answer);

  std::vector<Pace> paces_;
  std::int64_t staleness_;
  std::int64_t fewest_ = 0;  // number of pushes of the slowest present workers
  std::size_t slowest_;      // number of slowest present workers
};

}  // namespace gradientflow::policy

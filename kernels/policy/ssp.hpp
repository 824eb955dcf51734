// Stale synchronous parallel: each push is applied as it comes; a worker goes on while it is at most `staleness` pushes
// ahead of the slowest one present.
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
  // Whether a worker goes on at its push; `is_within`: it is within the bound. Asked once for each push, unless an
  // earlier one has not been answered.
  virtual bool goes_on(std::size_t worker, bool is_within);

  // Whether a waiting worker goes on at a push of the slowest, after which it is still beyond the bound.
  virtual bool goes_on_later(std::size_t worker, double seconds);

  struct Pace {
    std::int64_t pushes = 0;
    std::int64_t answered = 0;  // answered pushes
    double last = 0;            // time of the last push
    double before = 0;          // time of the push before
    bool is_present = true;
  };
  [[nodiscard]] const std::vector<Pace>& paces() const { return paces_; }
  [[nodiscard]] std::int64_t fewest() const { return fewest_; }

 private:
  // Both look at all workers, but only when the fewest pushes have changed, before which every worker must have pushed:
  // constant amortised time for each push.
  void find_slowest();
  void follow_slowest(double seconds, Answer& answer);

  std::vector<Pace> paces_;
  std::int64_t staleness_;
  std::int64_t fewest_ = 0;  // pushes of the slowest present workers
  std::size_t slowest_;      // their number
};

}  // namespace gradientflow::policy

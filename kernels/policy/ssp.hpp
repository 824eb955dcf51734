// Stale synchronous parallel: each push is applied as it comes; a worker goes on while it has pushed at most
// `staleness` times more than the slowest one that takes part.
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
  // Whether a worker goes on at its push. Asked once for each push, unless one before has not been answered.
  virtual bool goes_on(std::size_t worker, bool is_within);

  // Whether a worker that waits goes on now, though the slowest has pushed and is still too far behind.
  virtual bool goes_on_later(std::size_t worker, double seconds);

  struct Pace {
    std::int64_t pushes = 0;
    std::int64_t answered = 0;  // the first so many pushes
    double last = 0;            // push
    double before = 0;          // it
    bool here = true;
  };
  [[nodiscard]] const std::vector<Pace>& paces() const { return paces_; }
  [[nodiscard]] std::int64_t fewest() const { return fewest_; }

 private:
  // Both look at all workers, but only when the fewest pushes have changed, for which every worker must have pushed: a
  // constant time for each push, on average.
  void find_slowest();
  void follow_slowest(double seconds, Answer& answer);

  std::vector<Pace> paces_;
  std::int64_t staleness_;
  std::int64_t fewest_ = 0;  // pushes of a worker that takes part
  std::size_t slowest_;      // how many have that few
};

}  // namespace gradientflow::policy

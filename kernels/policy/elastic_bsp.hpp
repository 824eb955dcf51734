// Elastic bulk synchronous parallel (elastic synchronization thesis, chapter 6): all workers wait for each other at
// barriers. Each worker runs the number of iterations up to the next barrier that keeps the waits short. In between,
// each push is applied when it arrives.
//
// After a barrier all workers run until each has pushed twice. Then the next `lookahead` pushes of each worker are
// predicted from its last interval, and the next barrier is searched: see barrier_search.hpp. Each worker runs its
// number of predicted pushes up to the barrier, and waits. If a worker departs, the barrier is searched again for the
// remaining workers; the last push of a worker that already waits is a candidate, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy.hpp"

namespace gradientflow::policy {

class ElasticBsp : public Policy {
 public:
  // Throws Error(value) for a lookahead below 1.
  ElasticBsp(int workers, std::int64_t lookahead);
  Answer pushed(int worker, double seconds) override;
  Answer departed(int worker, double seconds) override;

 private:
  struct Pace {
    std::int64_t pushes = 0;    // pushes since the last barrier
    std::int64_t left = 0;      // iterations until the worker waits at the barrier, once that is known
    std::int64_t answered = 0;  // answered pushes since the last barrier
    double last = 0;            // time of the last push
    double before = 0;          // time of the push before the last
    bool is_present = true;
  };
  [[nodiscard]] bool all_here(bool (*is)(const Pace& pace)) const;
  void search(double seconds, Answer& answer);
  void hold_barrier_if_complete(Answer& answer);
  static void answer_all(int worker, Pace& pace, Answer& answer);

  std::vector<Pace> paces_;
  std::int64_t lookahead_;
  bool is_known_ = false;  // true once the next barrier is known
  std::vector<double> times_;
};

}  // namespace gradientflow::policy

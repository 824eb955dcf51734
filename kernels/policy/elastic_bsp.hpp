// Elastic bulk synchronous parallel (elastic synchronization thesis, chapter 6): barriers at which all workers wait for
// each other, each after as many iterations as make the waiting short. Between them each push is applied as it comes.
//
// After a barrier everybody goes on until each worker has pushed twice. From its last interval the next `lookahead`
// pushes of each are predicted, and the barrier is searched: see barrier_search.hpp. Each worker runs as many
// iterations as it has predicted pushes up to the barrier, and waits. Where a worker leaves, the barrier is searched
// again for the others: for those that wait already, their last push is one more that can be chosen.
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
    std::int64_t pushes = 0;    // since the last barrier
    std::int64_t left = 0;      // iterations to run before it waits, once that is known
    std::int64_t answered = 0;  // pushes since the last barrier
    double last = 0;            // push
    double before = 0;          // it
    bool here = true;
  };
  [[nodiscard]] bool all_here(bool (*is)(const Pace& pace)) const;
  void search(double seconds, Answer& answer);
  void hold_barrier_if_complete(Answer& answer);
  static void answer_all(int worker, Pace& pace, Answer& answer);

  std::vector<Pace> paces_;
  std::int64_t lookahead_;
  bool is_known_ = false;  // when the next barrier falls
  std::vector<double> times_;
};

}  // namespace gradientflow::policy

// Refuses events and answers that cannot be: so that a user's own policy, or a trace that was changed, ends with a
// sentence and not with weights that nobody understands.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "policy.hpp"

namespace gradientflow::policy {

// Asks another policy, and throws Error(value), which names the policy and the worker, where
// - an event is of a worker that there is not or that has departed, or its time is not finite, or before the last one;
// - a round is empty, or its workers are not in ascending order;
// - a worker's push is applied that has not come, or was applied already;
// - a worker may go on that has not pushed since it was last told so.
// After an error it throws the same one at every event, because the other policy and the counts no longer agree.
class Checked : public Policy {
 public:
  Checked(std::string name, int workers, std::shared_ptr<Policy> policy);
  Answer pushed(int worker, double seconds) override;
  Answer departed(int worker, double seconds) override;
  [[nodiscard]] bool is_for_any_thread() const override { return policy_->is_for_any_thread(); }

  [[nodiscard]] int workers() const { return static_cast<int>(counts_.size()); }

 private:
  struct Counts {
    std::int64_t not_applied = 0;
    std::int64_t not_answered = 0;
    bool here = true;
  };
  template <class Ask>
  Answer ask(Ask ask);
  void check_event(std::string_view event, int worker, double seconds);
  void check_answer(const Answer& answer);
  [[nodiscard]] Counts& counts(int worker);
  [[noreturn]] void refuse(const std::string& what) const;

  std::string name_;
  std::shared_ptr<Policy> policy_;
  std::vector<Counts> counts_;
  double last_ = -std::numeric_limits<double>::infinity();
  std::string error_;
};

}  // namespace gradientflow::policy

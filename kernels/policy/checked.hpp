// A policy that checks another policy, and refuses impossible events and answers. So a faulty policy of a user, or an
// edited trace, ends with an error and not with wrong weights.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "policy.hpp"

namespace gradientflow::policy {

// Wrapper of a policy. Throws Error(value), which names the policy and the worker, if
// - an event is of an unknown or departed worker, or its time is not finite, or before the last event;
// - a round is empty, or its workers are not in ascending order;
// - an answer applies a push that has not arrived, or is applied already;
// - an answer lets a worker continue that has not pushed since it last continued.
// After an error it throws the same error at every event, because the policy and the counts no longer agree.
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
    bool is_present = true;
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

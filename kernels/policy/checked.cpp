#include "checked.hpp"

#include <cmath>
#include <cstddef>
#include <utility>

#include "../base/error.hpp"

namespace gradientflow::policy {

Checked::Checked(std::string name, int workers, std::shared_ptr<Policy> policy)
    : name_(std::move(name)), policy_(std::move(policy)) {
  if (workers < 1) {
    throw Error(ErrorKind::value, name_ + " is for 1 worker or more, not " + std::to_string(workers));
  }
  counts_.resize(static_cast<std::size_t>(workers));
}

Answer Checked::pushed(int worker, double seconds) {
  check_event("a push", worker, seconds);
  return ask([&] {
    ++counts(worker).not_applied;
    ++counts(worker).not_answered;
    return policy_->pushed(worker, seconds);
  });
}

Answer Checked::departed(int worker, double seconds) {
  check_event("a departure", worker, seconds);
  return ask([&] {
    counts(worker).is_present = false;
    return policy_->departed(worker, seconds);
  });
}

template <class Ask>
Answer Checked::ask(Ask ask) {
  try {
    Answer answer = ask();
    check_answer(answer);
    return answer;
  } catch (const Error& error) {
    error_ = error.what();
    throw;
  }
}

void Checked::check_event(std::string_view event, int worker, double seconds) {
  if (!error_.empty()) {
    throw Error(ErrorKind::value, error_);
  }
  const auto refuse_event = [&](const std::string& why) {
    throw Error(ErrorKind::value, name_ + " was told of " + std::string(event) + " of worker " +
                                      std::to_string(worker) + " at " + std::to_string(seconds) + " s, but " + why);
  };
  if (worker < 0 || worker >= workers()) {
    refuse_event("it has workers 0 to " + std::to_string(workers() - 1));
  }
  if (!counts(worker).is_present) {
    refuse_event("this worker has departed");
  }
  if (!std::isfinite(seconds) || seconds < last_) {
    refuse_event(std::isfinite(seconds) ? "the event before was at " + std::to_string(last_) + " s"
                                        : "that is no time");
  }
  last_ = seconds;
}

void Checked::check_answer(const Answer& answer) {
  for (const std::vector<int>& round : answer.apply) {
    if (round.empty()) {
      refuse("applies a round of no workers");
    }
    int before = -1;
    for (const int worker : round) {
      Counts& count = counts(worker);
      if (worker <= before) {
        refuse("applies a round in which worker " + std::to_string(worker) +
               (worker == before ? " is twice" : " comes after worker " + std::to_string(before)) +
               ": the workers of a round are in ascending order");
      }
      if (count.not_applied == 0) {
        refuse("applies a push of worker " + std::to_string(worker) + ", all of whose pushes are applied already");
      }
      --count.not_applied;
      before = worker;
    }
  }
  for (const int worker : answer.release) {
    Counts& count = counts(worker);
    if (count.not_answered == 0) {
      refuse("lets worker " + std::to_string(worker) + " go on, which already may for each of its pushes");
    }
    --count.not_answered;
  }
}

Checked::Counts& Checked::counts(int worker) {
  if (worker < 0 || worker >= workers()) {
    refuse("names worker " + std::to_string(worker) + ", but the workers are 0 to " + std::to_string(workers() - 1));
  }
  return counts_[static_cast<std::size_t>(worker)];
}

void Checked::refuse(const std::string& what) const {
  throw Error(ErrorKind::value, "the policy " + name_ + " " + what);
}

}  // namespace gradientflow::policy

// What workers did under a policy, added up from the events that it was told and its answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "policy.hpp"

namespace gradientflow::policy {

struct Event {
  int worker;
  double seconds;
  bool is_departure;
  Answer answer;
};

// Where all workers have departed, all begin afresh with the next event.
class Account {
 public:
  explicit Account(int workers);
  void note(const Event& event);

  [[nodiscard]] std::int64_t pushes(int worker) const { return at(worker).all; }

  // Seconds from its pushes until it went on, or until now.
  [[nodiscard]] double waited(int worker, double now) const;

  // How often a worker went on so many pushes ahead of the slowest one that takes part.
  [[nodiscard]] const std::vector<std::int64_t>& staleness() const { return staleness_; }

  // When all workers that took part, at least two, went on together.
  [[nodiscard]] const std::vector<double>& barriers() const { return barriers_; }

  [[nodiscard]] double last() const { return last_; }  // event

 private:
  struct Worker {
    std::int64_t all = 0;      // pushes
    std::int64_t pushes = 0;   // since all began
    std::deque<double> waits;  // since when, for each push that is not answered
    double waited = 0;
    bool here = true;
  };
  [[nodiscard]] const Worker& at(int worker) const { return workers_.at(static_cast<std::size_t>(worker)); }
  void begin();
  void count(std::int64_t pushes, int change);

  std::vector<Worker> workers_;
  std::map<std::int64_t, std::size_t> present_;  // how many that take part have so many pushes
  std::size_t here_ = 0;
  std::vector<std::int64_t> staleness_;
  std::vector<double> barriers_;
  double last_ = 0;
};

}  // namespace gradientflow::policy

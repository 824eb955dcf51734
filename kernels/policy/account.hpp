// Statistics of workers under a policy: pushes, waits, staleness and barriers, counted from events and answers.
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

// Counts over runs: when all workers have departed, the next event starts a new run with all of them.
class Account {
 public:
  explicit Account(int workers);
  void note(const Event& event);

  [[nodiscard]] std::int64_t pushes(int worker) const { return at(worker).all; }

  // Total seconds between the worker's pushes and their answers, up to `now` for unanswered pushes.
  [[nodiscard]] double waited(int worker, double now) const;

  // Returns a histogram: element k counts how often a worker continued k pushes ahead of the slowest present worker.
  [[nodiscard]] const std::vector<std::int64_t>& staleness() const { return staleness_; }

  // Returns the times at which all present workers, at least two, continued together.
  [[nodiscard]] const std::vector<double>& barriers() const { return barriers_; }

  [[nodiscard]] double last() const { return last_; }  // time of the last event

 private:
  struct Worker {
    std::int64_t all = 0;      // pushes in all runs
    std::int64_t pushes = 0;   // pushes in this run
    std::deque<double> waits;  // times of the unanswered pushes
    double waited = 0;
    bool is_present = true;
  };
  [[nodiscard]] const Worker& at(int worker) const { return workers_.at(static_cast<std::size_t>(worker)); }
  void begin();
  void count(std::int64_t pushes, int change);

  std::vector<Worker> workers_;
  std::map<std::int64_t, std::size_t> present_;  // number of present workers, by number of pushes
  std::size_t here_ = 0;
  std::vector<std::int64_t> staleness_;
  std::vector<double> barriers_;
  double last_ = 0;
};

}  // namespace gradientflow::policy

// Log of server 0: workers' waiting times, their staleness, and the questions to the policy with its answers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "../../policy/policy.hpp"

namespace gradientflow::engine {

class ServerLog {
 public:
  explicit ServerLog(int workers) : workers_(static_cast<std::size_t>(workers)) {}

  // Returns the seconds since the server began.
  [[nodiscard]] double now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  void pushed(int worker);
  void departed(int worker) { of(worker).departed = true; }
  void went_on(int worker);
  void ended();  // begins a new epoch, as all workers have departed
  void answered(int worker, double seconds, bool departed, const policy::Answer& answer);

  // Returns the number of barriers, which are answers that let all remaining workers continue; then for each worker:
  // pushes, seconds waited, and the histogram of its staleness (the number of pairs, then each pair of staleness and
  // count).
  [[nodiscard]] std::vector<double> statistics() const;

  // Returns all events in order: worker, seconds, 1 if it departed, and the answer with the lengths of its lists.
  [[nodiscard]] const std::vector<double>& trace() const { return trace_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Worker {
    bool departed = false;
    std::uint64_t pushed = 0;         // pushes in this epoch
    std::uint64_t pushed_before = 0;  // pushes in earlier epochs
    std::deque<double> since;         // times of the pushes after which the worker is still waiting
    double waited = 0.0;
    std::map<std::uint64_t, std::uint64_t> staleness;
  };
  [[nodiscard]] Worker& of(int worker) { return workers_[static_cast<std::size_t>(worker)]; }

  std::vector<Worker> workers_;
  std::uint64_t barriers_ = 0;
  std::vector<double> trace_;
  std::size_t events_ = 0;
  Clock::time_point start_ = Clock::now();
};

}  // namespace gradientflow::engine

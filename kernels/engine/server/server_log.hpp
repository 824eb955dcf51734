// The log of server 0: how long workers waited, their staleness, and the questions to the policy with its answers.
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

  // Seconds since the server began.
  [[nodiscard]] double now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  void pushed(int worker);
  void departed(int worker) { of(worker).departed = true; }
  void went_on(int worker);
  void ended();  // all workers have departed: a new epoch begins
  void answered(int worker, double seconds, bool departed, const policy::Answer& answer);

  // The number of barriers: answers that let all remaining workers go on. Then of each worker: pushes, seconds waited,
  // and the histogram of its staleness: the number of pairs, then each pair of staleness and count.
  [[nodiscard]] std::vector<double> statistics() const;

  // Events one after the other: worker, seconds, whether it departed, and the answer with the lengths of its lists.
  [[nodiscard]] const std::vector<double>& trace() const { return trace_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Worker {
    bool departed = false;
    std::uint64_t pushed = 0;         // in this epoch
    std::uint64_t pushed_before = 0;  // in earlier epochs
    std::deque<double> since;         // times of the pushes after which it may not go on yet
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

#include "server_log.hpp"

#include <algorithm>
#include <utility>

namespace gradientflow::engine {
namespace {

constexpr std::size_t most_events = std::size_t{1} << 20;  // number of events kept

}  // namespace

void ServerLog::pushed(int worker) {
  ++of(worker).pushed;
  of(worker).since.push_back(now());
}

// Counts the staleness of a worker that continues: the number of pushes by which it leads the slowest worker that has
// not departed.
void ServerLog::went_on(int worker) {
  Worker& who = of(worker);
  if (who.since.empty()) {
    return;
  }
  who.waited += now() - who.since.front();
  who.since.pop_front();
  std::uint64_t slowest = who.pushed;
  for (const Worker& each : workers_) {
    slowest = each.departed ? slowest : std::min(slowest, each.pushed);
  }
  ++who.staleness[who.pushed - slowest];
}

void ServerLog::ended() {
  for (Worker& each : workers_) {
    each.departed = false;
    each.since.clear();
    each.pushed_before += std::exchange(each.pushed, 0);
  }
}

void ServerLog::answered(int worker, double seconds, bool departed, const policy::Answer& answer) {
  const auto here = static_cast<std::size_t>(
      std::count_if(workers_.begin(), workers_.end(), [](const Worker& each) { return !each.departed; }));
  barriers_ += here > 1 && answer.release.size() >= here ? 1 : 0;
  if (++events_ > most_events) {
    return;
  }
  trace_.insert(trace_.end(), {static_cast<double>(worker), seconds, departed ? 1.0 : 0.0});
  trace_.push_back(static_cast<double>(answer.apply.size()));
  for (const auto& round : answer.apply) {
    trace_.push_back(static_cast<double>(round.size()));
    trace_.insert(trace_.end(), round.begin(), round.end());
  }
  trace_.push_back(static_cast<double>(answer.release.size()));
  trace_.insert(trace_.end(), answer.release.begin(), answer.release.end());
}

std::vector<double> ServerLog::statistics() const {
  std::vector<double> numbers = {static_cast<double>(barriers_)};
  for (const Worker& each : workers_) {
    numbers.insert(numbers.end(), {static_cast<double>(each.pushed_before + each.pushed), each.waited,
                                   static_cast<double>(each.staleness.size())});
    for (const auto& [ahead, times] : each.staleness) {
      numbers.insert(numbers.end(), {static_cast<double>(ahead), static_cast<double>(times)});
    }
  }
  return numbers;
}

}  // namespace gradientflow::engine

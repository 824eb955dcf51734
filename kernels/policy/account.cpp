#include "account.hpp"

#include <algorithm>
#include <numeric>

namespace gradientflow::policy {

Account::Account(int workers) : workers_(static_cast<std::size_t>(workers)) { begin(); }

void Account::begin() {
  for (Worker& worker : workers_) {
    worker.pushes = 0;
    worker.waits.clear();
    worker.is_present = true;
  }
  here_ = workers_.size();
  present_ = {{0, here_}};
}

void Account::note(const Event& event) {
  if (here_ == 0) {
    begin();
  }
  last_ = event.seconds;
  Worker& worker = workers_.at(static_cast<std::size_t>(event.worker));
  count(worker.pushes, -1);
  if (event.is_departure) {
    worker.is_present = false;
    --here_;
  } else {
    ++worker.all;
    count(++worker.pushes, 1);
    worker.waits.push_back(event.seconds);
  }
  std::size_t together = 0;
  for (const int each : event.answer.release) {
    Worker& other = workers_.at(static_cast<std::size_t>(each));
    if (other.waits.empty()) {
      continue;
    }
    other.waited += event.seconds - other.waits.front();
    other.waits.pop_front();
    if (other.is_present) {
      ++together;
      const auto ahead = static_cast<std::size_t>(other.pushes - present_.begin()->first);
      staleness_.resize(std::max(staleness_.size(), ahead + 1));
      ++staleness_[ahead];
    }
  }
  if (here_ > 1 && together == here_) {
    barriers_.push_back(event.seconds);
  }
}

double Account::waited(int worker, double now) const {
  const Worker& found = at(worker);
  const double none = found.waited;
  return found.is_present ? std::accumulate(found.waits.begin(), found.waits.end(), none,
                                            [&](double sum, double since) { return sum + now - since; })
                          : none;
}

void Account::count(std::int64_t pushes, int change) {
  if (change > 0) {
    ++present_[pushes];
  } else if (const auto found = present_.find(pushes); --found->second == 0) {
    present_.erase(found);
  }
}

}  // namespace gradientflow::policy

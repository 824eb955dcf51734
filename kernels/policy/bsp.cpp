#include "bsp.hpp"

#include <cstddef>
#include <utility>

namespace gradientflow::policy {

Answer Bsp::pushed(int worker, double /*seconds*/) {
  ++waiting_[static_cast<std::size_t>(worker)];
  return apply_complete_rounds();
}

Answer Bsp::departed(int worker, double /*seconds*/) {
  here_[static_cast<std::size_t>(worker)] = false;
  return apply_complete_rounds();
}

// Applies complete rounds. A departed worker is part of them until all its pushes are applied.
Answer Bsp::apply_complete_rounds() {
  Answer answer;
  while (true) {
    std::vector<int> round;
    for (std::size_t worker = 0; worker < waiting_.size(); ++worker) {
      if (waiting_[worker] > 0) {
        round.push_back(static_cast<int>(worker));
      } else if (here_[worker]) {
        return answer;
      }
    }
    if (round.empty()) {
      return answer;
    }
    for (const int worker : round) {
      --waiting_[static_cast<std::size_t>(worker)];
      answer.release.push_back(worker);
    }
    answer.apply.push_back(std::move(round));
  }
}

}  // namespace gradientflow::policy

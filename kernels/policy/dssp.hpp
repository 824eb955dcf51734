// Dynamic stale synchronous parallel (elastic synchronization thesis, chapter 5): a worker at most `low` pushes ahead
// of the slowest continues. The fastest worker may run further ahead, up to `high`, by as many iterations as make its
// next wait shortest.
//
// The next pushes of this worker and of the slowest worker are predicted from their last intervals. The worker is
// granted the number of iterations after which its push is nearest in time to a push of the slowest worker, the
// smallest of equally good numbers. It uses them up before it is judged again; if none are granted, it waits until it
// is within `low`. In the thesis' algorithm 1, a worker could run one iteration further, and be granted more without
// limit. Here the iteration that begins with the judgment counts as granted, and `high` limits the number.
//
// To save time, the thesis judges only the fastest worker, and never a waiting worker. So the bound is `low` for all
// other workers, and for a worker that waits. With Judged::all, each worker that is ahead is judged. A waiting worker
// is judged again at each push of the slowest worker, when its wait ends in the thesis' figure 5.1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ssp.hpp"

namespace gradientflow::policy {

class Dssp : public Ssp {
 public:
  enum class Judged : std::uint8_t { fastest, all };

  // Throws Error(value) unless 0 <= low <= high.
  Dssp(int workers, std::int64_t low, std::int64_t high, Judged judged = Judged::fastest);

 protected:
  bool is_released(std::size_t worker, bool is_within) override;
  bool is_released_later(std::size_t worker, double seconds) override;

 private:
  bool judge(std::size_t worker, double seconds);
  [[nodiscard]] std::int64_t iterations_ahead(std::size_t worker, double seconds) const;

  Judged judged_;
  std::int64_t high_;
  std::int64_t range_;                 // high - low
  std::vector<std::int64_t> granted_;  // granted iterations that are left to each worker
};

}  // namespace gradientflow::policy

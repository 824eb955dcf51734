// Dynamic stale synchronous parallel (elastic synchronization thesis, chapter 5): within `low` pushes ahead of the
// slowest everybody goes on. The fastest worker may run further ahead, up to `high`, by as many iterations as let it
// stop where it will wait least.
//
// From its last interval, and that of the slowest worker, the next pushes of both are predicted. It is granted the
// number of iterations after which its push is nearest in time to one of the slowest worker's; of equally near ones the
// smallest. It uses them up before it is judged again; with none it waits until it is within `low`. Unlike the thesis'
// algorithm 1, the iteration that begins with the judgement is one of them, and no more are granted than `high` allows:
// there a worker could run one further, and be granted more again without limit.
//
// The thesis judges the fastest worker alone, to save time, and never one that waits; so the others, and one that has
// waited, are back at `low`. With `judged` all, each worker that is ahead is judged, and one that waits again each time
// that the slowest one pushes: as the thesis' figure 5.1 has it, its waiting ends there.
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
  bool goes_on(std::size_t worker, bool is_within) override;
  bool goes_on_later(std::size_t worker, double seconds) override;

 private:
  bool judge(std::size_t worker, double seconds);
  [[nodiscard]] std::int64_t iterations_ahead(std::size_t worker, double seconds) const;

  Judged judged_;
  std::int64_t high_;
  std::int64_t range_;                 // high - low
  std::vector<std::int64_t> granted_;  // iterations that are left, by worker
};

}  // namespace gradientflow::policy

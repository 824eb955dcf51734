// Ranges of a gradient pool, reduced inside a node by whoever has time, without a thread of its own. Every rank says
// how many of its ranges are complete; a rank that looks in reduces its own slice of those that are complete
// everywhere, for all ranks. Nobody waits: what is not done on the way is done when all ranks have met at the end, and
// the ranks meet once more before they use the results. So a range is reduced while it is still in the caches, and no
// core is switched between threads. Every element is computed once, by one rank: all ranks get the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "../../transport/node/node.hpp"
#include "../call/call.hpp"

namespace gradientflow::collective {

class PooledSlices {
 public:
  // A segment has so much behind the tensors, for the number of complete ranges of its rank.
  static constexpr std::size_t extra_bytes = 64;

  PooledSlices(std::shared_ptr<transport::Segment> segment, int ranks, int rank);

  // So many ranges of this rank are complete, in all iterations. What was written to them is seen by who reads it.
  void publish(std::uint64_t number) noexcept;
  [[nodiscard]] std::uint64_t complete_everywhere() const noexcept;

  // Reduces this rank's slice of the tensors at `offset` of all ranks, in place.
  void reduce(const Call& call, std::size_t offset) const;

 private:
  [[nodiscard]] std::uint64_t& counter(int rank) const noexcept;

  std::shared_ptr<transport::Segment> segment_;
  int ranks_;
  int rank_;
};

}  // namespace gradientflow::collective

// Allreduce of medium-sized tensors between several ranks: every rank receives its slice of the tensor from all peers
// at once, reduces it, and sends the result to all. This algorithm sends as many bytes as a ring, in 2 steps instead of
// 2 (P - 1).
#pragma once

#include <span>
#include <vector>

#include "lane.hpp"

namespace gradientflow::collective {

// The two steps, for one member of a lane. The caller makes the first exchange.
class PairwiseAllreduce {
 public:
  PairwiseAllreduce(const Lane& lane, Operands& operands, Scratch& scratch);

  // This member's contribution to member `to`'s slice, as a segment.
  [[nodiscard]] std::span<const std::byte> part_for(std::size_t to);

  // Bytes of one contribution to this member's own slice, and a buffer for the contribution of member `from`.
  [[nodiscard]] std::size_t part_bytes() const { return operands_.segment_bytes(slice_of(lane_.index).size()); }
  [[nodiscard]] std::size_t largest_part() const { return operands_.segment_bytes(slice_of(0).size()); }
  [[nodiscard]] std::byte* room_for_part(std::size_t from) { return segment(3 * lane_.size() + 1 + from); }

  // Makes the second step. `parts` has the contribution of each member; this member's entry is not read. All members
  // call this function.
  void finish(std::span<const std::byte* const> parts);

 private:
  [[nodiscard]] Range slice_of(std::size_t member) const;
  [[nodiscard]] std::byte* segment(std::size_t index);
  [[nodiscard]] std::byte* values(std::size_t index);
  [[nodiscard]] transport::Request receive_result(std::size_t from);

  const Lane& lane_;
  Operands& operands_;
  Scratch& scratch_;
  std::vector<transport::Request> incoming_;
  std::vector<transport::Request> outgoing_;
};

// Makes both steps. All members of the lane call it. The result has the same bits on all of them: one member computes
// each element.
void pairwise_allreduce(const Lane& lane, Operands& operands, Scratch& scratch);

}  // namespace gradientflow::collective

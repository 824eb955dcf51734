// Allreduce by recursive doubling: in every round each rank exchanges its partial result with a partner, twice as far
// away as in the round before, and combines the two. After log2 P rounds all ranks have the result.
//
// Every rank sends the whole tensor log2 P times, so the algorithm is for small tensors. Between two ranks it is the
// fastest for all sizes, because no step waits for another. If P is not a power of two, the ranks beyond the largest
// power of two first send their values to a partner, which sends back the result at the end. Segments are pipelined
// across rounds as in a ring.
#pragma once

#include <cstddef>
#include <vector>

#include "lane.hpp"

namespace gradientflow::collective {

// One member's round: exchange with `peer`, or only send to it, or only receive from it.
struct Round {
  std::size_t peer;  // index in the lane
  bool sends;
  bool receives;
};

// Returns the rounds of member `index`. A pure function.
[[nodiscard]] std::vector<Round> doubling_rounds(std::size_t size, std::size_t index);

// Makes an allreduce. All members of the lane call it. The result has the same bits on all of them: two partners
// combine the same operands in the same order.
void recursive_doubling(const Lane& lane, Operands& operands, Scratch& scratch);

}  // namespace gradientflow::collective

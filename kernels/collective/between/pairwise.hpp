// Collectives in which every block goes straight from its owner to whoever needs it: alltoall, gather, scatter, and
// allgather of small blocks. In step k a rank sends to the one k places after it and receives from the one k places
// before it, so that nobody is everybody's target at once.
#pragma once

#include "../call/call.hpp"
#include "lane.hpp"

namespace gradientflow::collective {

// On the lane of all ranks.
void pairwise(const Lane& lane, const Call& call);

}  // namespace gradientflow::collective

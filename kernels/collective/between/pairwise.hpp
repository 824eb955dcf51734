// Collectives in which every block is sent directly from its owner to each rank that needs it: alltoall, gather,
// scatter, and allgather of small blocks. In step k rank r sends to rank r + k and receives from rank r - k (modulo P),
// so that no rank is the target of all ranks at once.
#pragma once

#include "../call/call.hpp"
#include "lane.hpp"

namespace gradientflow::collective {

// Runs on the lane of all ranks.
void pairwise(const Lane& lane, const Call& call);

}  // namespace gradientflow::collective

// Allreduce of middle-sized tensors between several ranks: every rank gets its slice of the tensor from all others at
// once, reduces it, and sends the result to all. As many bytes as in a ring, in 2 steps instead of 2 (P - 1).
#pragma once

#include "lane.hpp"

namespace gradientflow::collective {

// All members of the lane call it. The result has the same bits on all of them: every element is computed by one.
void pairwise_allreduce(const Lane& lane, Operands& operands, Scratch& scratch);

}  // namespace gradientflow::collective

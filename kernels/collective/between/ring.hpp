// Collectives around a ring: every rank sends to its right and receives from its left.
//
// The tensor is cut into one chunk for each rank, a chunk into segments. In an allreduce the chunks travel twice around
// the ring: the first time every rank adds its own values, until the last one has the result (reduce-scatter), the
// second time the results are handed on (allgather). That is 2 (P - 1) steps, in each of which every rank sends one
// chunk: 2 (P - 1) / P of the tensor, which is the least possible (GradientFlow paper, section 2.4).
//
// The loop knows no steps, only the stream of segments: what is received as segment t is sent on as segment t + S, with
// S segments in a chunk. So the next step begins while the last one is still under way, and the link is never idle.
#pragma once

#include "../call/call.hpp"
#include "lane.hpp"

namespace gradientflow::collective {

// All members of the lane call it. The result has the same bits on all of them: every element is computed by one.
void ring_allreduce(const Lane& lane, Operands& operands, Scratch& scratch);

// The first, or the second, half of it: on the lane of all ranks.
void ring_reduce_scatter(const Lane& lane, const Call& call, Scratch& scratch);
void ring_allgather(const Lane& lane, const Call& call);  // also allgatherv

}  // namespace gradientflow::collective

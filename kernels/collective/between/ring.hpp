// Collectives around a ring: every rank sends to the next rank and receives from the previous one.
//
// The tensor is cut into one chunk for each rank, a chunk into segments. In an allreduce the chunks travel twice around
// the ring: the first time every rank adds its own values, until the last rank has the result (reduce-scatter); the
// second time the results are passed on (allgather). That is 2 (P - 1) steps, in each of which every rank sends one
// chunk: 2 (P - 1) / P of the tensor, which is the least possible (GradientFlow paper, section 2.4).
//
// The loop has no steps, only a stream of segments: received segment t is sent as segment t + S, with S segments per
// chunk. So the next step begins while the previous step is still under way, and the link is never idle.
#pragma once

#include "../call/call.hpp"
#include "lane.hpp"

namespace gradientflow::collective {

// Makes an allreduce. All members of the lane call it. The result has the same bits on all of them: one member computes
// each element.
void ring_allreduce(const Lane& lane, Operands& operands, Scratch& scratch);

// Make the first and the second half of an allreduce, on the lane of all ranks.
void ring_reduce_scatter(const Lane& lane, const Call& call, Scratch& scratch);
void ring_allgather(const Lane& lane, const Call& call);  // also allgatherv

}  // namespace gradientflow::collective

// Allreduce and reduce on node memory in one pass: rank r reduces slice r of all inputs and writes the result to all
// outputs (reduce: to the root's output). A slice is cut into tasks. A rank that has finished its own slice takes tasks
// of its peers, since it maps all memory. So ranks that share a core need not all be scheduled again. No data are
// staged or sent. Every element is computed once, by one rank, so all ranks get the same bits.
#pragma once

#include "../../transport/node/node.hpp"
#include "../call/call.hpp"
#include "peer_memory.hpp"

namespace gradientflow::collective {

// Returns when all slices are done. Inputs and outputs of all ranks (reduce: the root's output) are mapped.
void one_pass(transport::Node& node, const Call& call, const PeerMemory& inputs, const PeerMemory& outputs,
              compute::Store store);

}  // namespace gradientflow::collective

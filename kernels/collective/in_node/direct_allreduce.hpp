// Allreduce of large ordinary arrays by direct reads: rank r reads slice r of all inputs and reduces it into its own
// output; then every rank reads the finished slices from the others' outputs. Two reads a byte, nothing staged.
#pragma once

#include "../../transport/node/node.hpp"
#include "../call/call.hpp"
#include "peer_memory.hpp"

namespace gradientflow::collective {

// Ends with a synchronisation: no output changes before all ranks have read it.
void direct_allreduce(transport::Node& node, const Call& call, const PeerMemory& inputs, const PeerMemory& outputs);

}  // namespace gradientflow::collective

// Collectives on ordinary arrays through staging slots: pieces of the tensors pass through node memory.
//
// Every rank has two slots, so that it fills one while the others read the other. A piece goes through three stages:
//   in    copy what the others need of my tensor into my slot
//   work  (once all are in) take what I need from the slots of the others; in allreduce and reduce, reduce my sub-slot
//         of all slots and leave the result there
//   out   (once all have worked) allreduce and reduce: copy the others' results from their slots
// A slot is divided into one sub-slot per rank, at fixed offsets whatever the length of the piece; sub-slot r of rank
// r's own slot carries no input, so it carries rank r's result.
#pragma once

#include "../../transport/node/node.hpp"
#include "../call/call.hpp"

namespace gradientflow::collective {

// The caller has exchanged announcements, so that all ranks are done with the slots.
void staged(transport::Node& node, const Call& call);

}  // namespace gradientflow::collective

// Collectives on ordinary arrays through staging slots: pieces of the tensors pass through node memory.
//
// Every rank has two slots, so that it fills one while the others read the other. A piece goes through three stages:
//   in    copy the data of my tensor that others need into my slot
//   work  (once all are in) copy the data that I need from the slots of the others; in allreduce and reduce, reduce my
//         sub-slot of all slots, with the result in my own slot
//   out   (once all have worked) allreduce and reduce: copy the others' results from their slots
// A slot is divided into one sub-slot per rank, at fixed offsets whatever the length of the piece; sub-slot r of rank
// r's own slot carries no input, so it holds rank r's result.
#pragma once

#include "../../transport/node/node.hpp"
#include "../call/call.hpp"

namespace gradientflow::collective {

// The caller has exchanged announcements, so no rank still uses the slots.
void staged(transport::Node& node, const Call& call);

}  // namespace gradientflow::collective

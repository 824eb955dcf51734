// Collectives on ordinary arrays through staging slots: pieces of the tensors pass through node memory.
//
// Every rank has two slots: it fills one while its peers read the second. A piece passes through three stages:
//   in    each rank copies the data of its tensor that its peers need into its slot
//   work  (once all are in) each rank copies the data that it needs from its peers' slots; in allreduce and reduce, it
//         reduces its sub-slot of all slots, with the result in its own slot
//   out   (once all have worked) allreduce and reduce: each rank copies its peers' results from their slots
// A slot is divided into one sub-slot per rank, at fixed offsets for any length of the piece. Sub-slot r of rank r's
// own slot carries no input, so it holds rank r's result.
#pragma once

#include "../../transport/node/node.hpp"
#include "../call/call.hpp"

namespace gradientflow::collective {

// Requires that announcements are exchanged: then no rank uses the slots any more.
void staged(transport::Node& node, const Call& call);

}  // namespace gradientflow::collective

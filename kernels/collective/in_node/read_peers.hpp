// Collectives in which every rank takes what it needs straight from the inputs of the others.
//
// broadcast, scatter: everybody reads the root. allgather, alltoall: everybody reads everybody. gather: the root reads
// everybody. reduce_scatter: rank r reduces block r of all inputs. With small tensors in the announcements, also reduce
// (the root reduces) and allreduce (every rank computes the same sum in the same order, so all get the same bits).
//
// The caller has exchanged announcements; nobody may change its input before all have read it: the caller
// synchronises afterwards, except with payloads, which the next exchange but one protects.
#pragma once

#include "../../transport/node/node.hpp"
#include "../call/call.hpp"
#include "peer_memory.hpp"

namespace gradientflow::collective {

void read_peers(const transport::Node& node, const Call& call, const PeerMemory& inputs, compute::Store store);

// Reduces elements [begin, end) of all inputs, in rank order, into each of `destinations`, which point to where
// element `begin` goes. Uses this rank's staging slots as buffers for direct reads.
void reduce_range(const transport::Node& node, const Call& call, const PeerMemory& inputs, std::size_t begin,
                  std::size_t end, std::span<std::byte* const> destinations, compute::Store store);

}  // namespace gradientflow::collective

// Collectives in which every rank reads the data that it needs directly from its peers' inputs.
//
// broadcast, scatter: all ranks read the root. allgather, alltoall: all ranks read all. gather: the root reads all.
// reduce_scatter: rank r reduces block r of all inputs. With small tensors in the announcements, also reduce (the root
// reduces) and allreduce (every rank computes the same sum in the same order, so all get the same bits).
//
// The caller has exchanged announcements. No rank may change its input before all have read it: the caller synchronizes
// afterwards, except with payloads, which stay valid until the exchange after the next.
#pragma once

#include "../../transport/node/node.hpp"
#include "../call/call.hpp"
#include "peer_memory.hpp"

namespace gradientflow::collective {

void read_peers(const transport::Node& node, const Call& call, const PeerMemory& inputs, compute::Store store);

// Reduces elements [begin, end) of all inputs, in rank order, into each of `destinations`, which are addresses of
// element `begin`. Uses this rank's staging slots as buffers for direct reads.
void reduce_range(const transport::Node& node, const Call& call, const PeerMemory& inputs, std::size_t begin,
                  std::size_t end, std::span<std::byte* const> destinations, compute::Store store);

}  // namespace gradientflow::collective

#include "direct_allreduce.hpp"

#include <array>

#include "../call/partition.hpp"
#include "read_peers.hpp"

namespace gradientflow::collective {

void direct_allreduce(transport::Node& node, const Call& call, const PeerMemory& inputs, const PeerMemory& outputs) {
  const std::size_t element = call.element();
  const auto ranks = static_cast<std::size_t>(node.size());
  const auto rank = static_cast<std::size_t>(node.rank());
  const auto slice_of = [&](std::size_t r) { return slice(call.signature.count, ranks, r, 64 / element); };

  const Range mine = slice_of(rank);
  const std::array<std::byte*, 1> destination = {call.output + mine.begin * element};
  reduce_range(node, call, inputs, mine.begin, mine.end, destination, compute::Store::cached);
  node.synchronize();
  for (std::size_t i = 1; i < ranks; ++i) {
    const std::size_t peer = (rank + i) % ranks;
    const Range theirs = slice_of(peer);
    outputs.fetch(static_cast<int>(peer), theirs.begin * element, theirs.size() * element,
                  call.output + theirs.begin * element, compute::Store::cached);
  }
  node.synchronize();
}

}  // namespace gradientflow::collective

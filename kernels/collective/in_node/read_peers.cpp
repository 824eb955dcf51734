#include "read_peers.hpp"

#include <array>

#include "../../base/short_array.hpp"
#include "../call/partition.hpp"

namespace gradientflow::collective {
namespace {

using transport::CallKind;

// Part of a peer's input, `bytes` bytes at offset `from`, for offset `to` of the output.
struct Piece {
  std::size_t from;
  std::size_t to;
  std::size_t bytes;
};

// Returns the most elements whose copies of all ranks fit into one rank's staging memory.
std::size_t buffered_elements(const transport::Node& node, std::size_t element) {
  const std::size_t share = 2 * node.staging_bytes() / static_cast<std::size_t>(node.size());
  return std::max<std::size_t>(share / 64 * 64, 64) / element;
}

}  // namespace

void reduce_range(const transport::Node& node, const Call& call, const PeerMemory& inputs, std::size_t begin,
                  std::size_t end, std::span<std::byte* const> destinations, compute::Store store) {
  const std::size_t element = call.element();
  const auto ranks = static_cast<std::size_t>(node.size());
  const std::size_t length = inputs.is_mapped() ? end - begin : buffered_elements(node, element);
  std::byte* const buffers = node.staging(node.rank(), 0);
  const compute::Reduction how = reduction(call.signature, node.size(), store);
  ShortArray<const void*> sources(ranks);
  ShortArray<void*> targets(destinations.size());
  for (std::size_t from = begin; from < end; from += length) {
    const std::size_t count = std::min(length, end - from);
    for (std::size_t p = 0; p < ranks; ++p) {
      sources[p] = inputs.view(static_cast<int>(p), from * element, count * element, buffers + p * length * element);
    }
    for (std::size_t d = 0; d < targets.size(); ++d) {
      targets[d] = destinations[d] + (from - begin) * element;
    }
    compute::reduce(targets, sources, count, how);
  }
}

void read_peers(const transport::Node& node, const Call& call, const PeerMemory& inputs, compute::Store store) {
  const int root = node.local_rank_of(call.signature.root);
  const auto ranks = static_cast<std::size_t>(node.size());
  const auto rank = static_cast<std::size_t>(node.rank());
  const std::array<std::byte*, 1> output = {call.output};
  // Fetches piece_of(peer) of each peer's input.
  const auto fetch_from_all = [&](auto piece_of) {
    for (std::size_t i = 0; i < ranks; ++i) {
      const std::size_t peer = (rank + i) % ranks;  // begins with this rank, so that not all ranks read the same peer
      const Piece part = piece_of(peer);
      inputs.fetch(static_cast<int>(peer), part.from, part.bytes, call.output + part.to, store);
    }
  };
  switch (call.signature.kind) {
    case CallKind::broadcast:
      if (node.rank() != root) {
        inputs.fetch(root, 0, call.bytes(), call.output, store);
      }
      return;
    case CallKind::allgather:
      fetch_from_all([&](std::size_t peer) { return Piece{0, peer * call.bytes(), call.bytes()}; });
      return;
    case CallKind::allgatherv:
      fetch_from_all([&](std::size_t peer) {
        return Piece{0, displacement(call, peer) * call.element(), call.counts[peer] * call.element()};
      });
      return;
    case CallKind::alltoall:
      fetch_from_all([&](std::size_t peer) { return Piece{rank * call.bytes(), peer * call.bytes(), call.bytes()}; });
      return;
    case CallKind::gather:
      if (node.rank() == root) {
        fetch_from_all([&](std::size_t peer) { return Piece{0, peer * call.bytes(), call.bytes()}; });
      }
      return;
    case CallKind::scatter:
      inputs.fetch(root, rank * call.bytes(), call.bytes(), call.output, store);
      return;
    case CallKind::reduce_scatter: {
      const Range mine = block(call.signature.count, ranks, rank);
      reduce_range(node, call, inputs, mine.begin, mine.end, output, store);
      return;
    }
    case CallKind::reduce:
      if (node.rank() == root) {
        reduce_range(node, call, inputs, 0, call.signature.count, output, store);
      }
      return;
    case CallKind::allreduce:
      reduce_range(node, call, inputs, 0, call.signature.count, output, store);
      return;
    case CallKind::barrier:
      return;
  }
}

}  // namespace gradientflow::collective

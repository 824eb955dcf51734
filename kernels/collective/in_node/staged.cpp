#include "staged.hpp"

#include <vector>

#include "../../base/error.hpp"
#include "../call/partition.hpp"
#include "pipeline.hpp"

namespace gradientflow::collective {
namespace {

using transport::CallKind;

constexpr auto nothing = [](std::size_t) {};

// Addresses of sub-slots: rank `part`'s share of a piece in rank `owner`'s slot.
class Slots {
 public:
  Slots(const transport::Node& node, std::size_t element)
      : node_(&node),
        length_(std::max<std::size_t>(node.staging_bytes() / static_cast<std::size_t>(node.size()) / 64 * 64, 64) /
                element),
        stride_(length_ * element) {}

  [[nodiscard]] std::size_t length() const { return length_; }  // elements of a sub-slot
  [[nodiscard]] std::byte* at(std::size_t owner, std::size_t piece, std::size_t part) const {
    return node_->staging(static_cast<int>(owner), piece) + part * stride_;
  }

 private:
  const transport::Node* node_;
  std::size_t length_;
  std::size_t stride_;
};

struct Context {
  Context(transport::Node& the_node, const Call& the_call)
      : node(the_node),
        call(the_call),
        element(the_call.element()),
        count(the_call.signature.count),
        ranks(static_cast<std::size_t>(the_node.size())),
        rank(static_cast<std::size_t>(the_node.rank())),
        root(static_cast<std::size_t>(std::max(the_node.local_rank_of(the_call.signature.root), 0))) {}

  transport::Node& node;
  const Call& call;
  std::size_t element;
  std::size_t count;
  std::size_t ranks;
  std::size_t rank;
  std::size_t root;
};

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  compute::copy(to, from, bytes, compute::Store::cached);
}

// Serves allreduce and reduce. Piece k is a stretch of ranks * length elements, cut into one share per rank.
void staged_reduce(const Context& c) {
  const Slots slots(c.node, c.element);
  const std::size_t stretch = slots.length() * c.ranks;
  const auto share = [&](std::size_t k, std::size_t part) {
    const Range whole = piece({0, c.count}, stretch, k);
    const Range inside = slice(whole.size(), c.ranks, part, 64 / c.element);
    return Range{whole.begin + inside.begin, whole.begin + inside.end};
  };
  const bool everybody = c.call.signature.kind == CallKind::allreduce;
  const bool receives = everybody || c.rank == c.root;
  const compute::Reduction how = reduction(c.call.signature, c.node.size(), compute::Store::cached);
  std::vector<const void*> sources(c.ranks);

  const auto in = [&](std::size_t k) {
    for (std::size_t i = 1; i < c.ranks; ++i) {
      const std::size_t part = (c.rank + i) % c.ranks;
      const Range r = share(k, part);
      copy_bytes(slots.at(c.rank, k, part), c.call.input + r.begin * c.element, r.size() * c.element);
    }
  };
  const auto work = [&](std::size_t k) {
    const Range mine = share(k, c.rank);
    for (std::size_t p = 0; p < c.ranks; ++p) {
      sources[p] = p == c.rank ? c.call.input + mine.begin * c.element : slots.at(p, k, c.rank);
    }
    void* const result = receives ? c.call.output + mine.begin * c.element : slots.at(c.rank, k, c.rank);
    compute::reduce({&result, 1}, sources, mine.size(), how);
    if (everybody) {  // faster than a second destination: a copy need not fetch lines that peers have read
      copy_bytes(slots.at(c.rank, k, c.rank), c.call.output + mine.begin * c.element, mine.size() * c.element);
    }
  };
  const auto out = [&](std::size_t k) {
    for (std::size_t i = 1; receives && i < c.ranks; ++i) {
      const std::size_t part = (c.rank + i) % c.ranks;
      const Range r = share(k, part);
      copy_bytes(c.call.output + r.begin * c.element, slots.at(part, k, part), r.size() * c.element);
    }
  };
  pipeline(c.node, pieces(c.count, stretch), in, work, out);
}

// Serves reduce_scatter. Piece k holds, for every rank, piece k of its block.
void staged_reduce_scatter(const Context& c) {
  const Slots slots(c.node, c.element);
  const auto share = [&](std::size_t k, std::size_t part) {
    return piece(block(c.count, c.ranks, part), slots.length(), k);
  };
  const Range my_block = block(c.count, c.ranks, c.rank);
  const compute::Reduction how = reduction(c.call.signature, c.node.size(), compute::Store::cached);
  std::vector<const void*> sources(c.ranks);

  const auto in = [&](std::size_t k) {
    for (std::size_t i = 1; i < c.ranks; ++i) {
      const std::size_t part = (c.rank + i) % c.ranks;
      const Range r = share(k, part);
      copy_bytes(slots.at(c.rank, k, part), c.call.input + r.begin * c.element, r.size() * c.element);
    }
  };
  const auto work = [&](std::size_t k) {
    const Range mine = share(k, c.rank);
    for (std::size_t p = 0; p < c.ranks; ++p) {
      sources[p] = p == c.rank ? c.call.input + mine.begin * c.element : slots.at(p, k, c.rank);
    }
    void* const target = c.call.output + (mine.begin - my_block.begin) * c.element;
    compute::reduce({&target, 1}, sources, mine.size(), how);
  };
  const std::size_t longest = block(c.count, c.ranks, 0).size();
  pipeline(c.node, pieces(longest, slots.length()), in, work, nothing);
}

// Serves copies. A whole slot holds one piece of its rank's input. The root (broadcast) or all ranks fill their slots;
// the root (gather) or all ranks copy them out.
void staged_copy(const Context& c) {
  const CallKind kind = c.call.signature.kind;
  const std::size_t length = c.node.staging_bytes() / c.element;
  const bool from_all = kind != CallKind::broadcast;
  const bool receives = kind == CallKind::broadcast ? c.rank != c.root : kind != CallKind::gather || c.rank == c.root;
  const auto count_of = [&](std::size_t rank) { return kind == CallKind::allgatherv ? c.call.counts[rank] : c.count; };
  const auto place_of = [&](std::size_t rank) {
    return kind == CallKind::allgatherv ? displacement(c.call, rank) : from_all ? rank * c.count : 0;
  };
  const auto in = [&](std::size_t k) {
    if (from_all || c.rank == c.root) {
      const Range r = piece({0, count_of(c.rank)}, length, k);
      copy_bytes(c.node.staging(c.node.rank(), k), c.call.input + r.begin * c.element, r.size() * c.element);
    }
  };
  const auto work = [&](std::size_t k) {
    for (std::size_t i = 0; receives && i < c.ranks; ++i) {
      const std::size_t peer = (c.rank + i) % c.ranks;
      if (!from_all && peer != c.root) {
        continue;
      }
      const Range r = piece({0, count_of(peer)}, length, k);
      const std::byte* const from =
          peer == c.rank ? c.call.input + r.begin * c.element : c.node.staging(static_cast<int>(peer), k);
      copy_bytes(c.call.output + (place_of(peer) + r.begin) * c.element, from, r.size() * c.element);
    }
  };
  std::size_t longest = 0;
  for (std::size_t rank = 0; rank < c.ranks; ++rank) {
    longest = std::max(longest, count_of(rank));
  }
  pipeline(c.node, pieces(longest, length), in, work, nothing);
}

// Serves alltoall and scatter. Piece k holds, for every rank, piece k of the block that is sent to it.
void staged_exchange(const Context& c) {
  const Slots slots(c.node, c.element);
  const bool from_all = c.call.signature.kind == CallKind::alltoall;
  const auto share = [&](std::size_t k) { return piece({0, c.count}, slots.length(), k); };
  const auto in = [&](std::size_t k) {
    for (std::size_t i = 1; (from_all || c.rank == c.root) && i < c.ranks; ++i) {
      const std::size_t part = (c.rank + i) % c.ranks;
      copy_bytes(slots.at(c.rank, k, part), c.call.input + (part * c.count + share(k).begin) * c.element,
                 share(k).size() * c.element);
    }
  };
  const auto work = [&](std::size_t k) {
    for (std::size_t i = 0; i < c.ranks; ++i) {
      const std::size_t peer = (c.rank + i) % c.ranks;
      if (!from_all && peer != c.root) {
        continue;
      }
      const std::byte* const from = peer == c.rank ? c.call.input + (c.rank * c.count + share(k).begin) * c.element
                                                   : static_cast<const std::byte*>(slots.at(peer, k, c.rank));
      copy_bytes(c.call.output + ((from_all ? peer * c.count : 0) + share(k).begin) * c.element, from,
                 share(k).size() * c.element);
    }
  };
  pipeline(c.node, pieces(c.count, slots.length()), in, work, nothing);
}

}  // namespace

void staged(transport::Node& node, const Call& call) {
  const Context context(node, call);
  switch (call.signature.kind) {
    case CallKind::allreduce:
    case CallKind::reduce:
      staged_reduce(context);
      return;
    case CallKind::reduce_scatter:
      staged_reduce_scatter(context);
      return;
    case CallKind::broadcast:
    case CallKind::allgather:
    case CallKind::allgatherv:
    case CallKind::gather:
      staged_copy(context);
      return;
    case CallKind::alltoall:
    case CallKind::scatter:
      staged_exchange(context);
      return;
    case CallKind::barrier:
      throw Error(ErrorKind::internal, "a call without tensors was sent through staging slots");
  }
}

}  // namespace gradientflow::collective

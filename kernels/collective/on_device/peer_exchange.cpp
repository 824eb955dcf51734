#include "peer_exchange.hpp"

#include "../../base/error.hpp"

namespace gradientflow::collective {
namespace {

namespace cuda = compute::cuda;
using transport::CallKind;

constexpr std::size_t line = 128;  // bytes of a line, to which only one rank writes

// Largest number of bytes in all slots together for which every rank reads all slots: that is faster than a further
// meeting.
constexpr std::size_t whole_bytes = std::size_t{1} << 20;

// Returns the address in the output tensor of byte `at` of a piece's output buffer.
std::byte* place(const Call& call, const CallPiece& piece, std::size_t at) {
  for (const Move& move : piece.out) {
    if (at >= move.buffer && at < move.buffer + move.bytes) {
      return call.output + move.tensor + (at - move.buffer);
    }
  }
  throw Error(ErrorKind::internal, "a piece of a call has no place in its output");
}

}  // namespace

PeerExchange::PeerExchange(transport::Node& node, std::size_t slot_bytes)
    : node_(node),
      ranks_(static_cast<std::size_t>(node.size())),
      rank_(static_cast<std::size_t>(node.rank())),
      half_bytes_(slot_bytes / 2 / line * line),
      last_(std::make_shared<cuda::OwnedEvent>()) {
  if (ranks_ > cuda::most_tensors) {
    unavailable_reason_ = "the node has " + std::to_string(ranks_) + " ranks, and no more than " +
                          std::to_string(cuda::most_tensors) + " can exchange tensors in memory of their devices";
    return;
  }
  try {
    slots_ = DeviceSegment::make(node_, slot_bytes, ++made_, 2, last_);
    check_memory();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::memory && error.kind() != ErrorKind::system) {
      throw;
    }
    unavailable_reason_ = error.what();
    slots_.reset();
  }
}

std::shared_ptr<DeviceSegment> PeerExchange::allocate(std::size_t bytes) {
  const std::uint32_t id = made_ = made_ % ((1U << 24) - 1) + 1;
  const std::shared_ptr<DeviceSegment> segment = DeviceSegment::make(node_, bytes, id, 0, last_);
  const std::lock_guard lock(mutex_);
  std::erase_if(segments_, [](const auto& entry) { return entry.second.expired(); });
  segments_[segment->mine()] = segment;
  return segment;
}

std::shared_ptr<DeviceSegment> PeerExchange::find(const void* address, std::size_t bytes) const {
  const auto* const start = static_cast<const std::byte*>(address);
  const std::lock_guard lock(mutex_);
  auto candidate = segments_.upper_bound(start);
  if (candidate != segments_.begin()) {
    --candidate;
    if (auto segment = candidate->second.lock();
        segment != nullptr && start + bytes <= segment->mine() + segment->bytes()) {
      return segment;
    }
  }
  return nullptr;
}

// Tests the memory. Mapping may succeed although the devices cannot read each other's memory, for example on some
// virtual machines. So each rank reads a number from the memory of every peer.
void PeerExchange::check_memory() {
  node_.tell(transport::Node::Topic::result, find_unreadable_peer());
  node_.synchronize();
  for (int local = 0; local < node_.size(); ++local) {
    if (const std::uint64_t told = node_.told(transport::Node::Topic::result, local); told < ranks_) {
      throw Error(ErrorKind::system, "rank " + std::to_string(node_.world_rank(local)) +
                                         " does not see what is in memory of rank " +
                                         std::to_string(node_.world_rank(static_cast<int>(told))) + "'s device");
    }
  }
}

// Returns the first local rank whose memory this rank cannot read correctly; ranks_ if there is none. CUDA's errors are
// caught, so that all ranks take the same steps.
std::size_t PeerExchange::find_unreadable_peer() const {
  const cuda::Runtime& runtime = cuda::runtime();
  const auto number_of = [](std::size_t rank) { return std::uint64_t{0x67726164} + rank; };
  std::size_t looked_at = rank_;
  bool wrote = false;
  try {
    const std::uint64_t mine = number_of(rank_);
    runtime.copy(slots_->mine(), &mine, sizeof mine, nullptr);
    runtime.synchronize(nullptr);
    wrote = true;
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): told below
  }
  node_.synchronize();
  try {
    for (std::size_t rank = 0; wrote && rank < ranks_; ++rank) {
      looked_at = rank;
      std::uint64_t theirs = 0;
      runtime.copy(&theirs, slots_->part(static_cast<int>(rank)), sizeof theirs, nullptr);
      runtime.synchronize(nullptr);
      if (theirs != number_of(rank)) {
        return rank;
      }
    }
  } catch (const Error&) {
    return looked_at;
  }
  return wrote ? ranks_ : rank_;
}

// Orders `work` after the last call. The wait is not skipped for equal streams: if the last call's stream was
// destroyed, another stream may have its handle.
template <class Work>
void PeerExchange::in_order(cuda::Stream stream, Work work) {
  cuda::runtime().wait(stream, last_->get());
  try {
    work();
  } catch (...) {  // work that is already in the stream still uses memory of peers
    cuda::runtime().record(last_->get(), stream);
    throw;
  }
  cuda::runtime().record(last_->get(), stream);
}

void PeerExchange::stream_barrier(cuda::Stream stream) {
  const std::size_t turn = meetings_++ % 2;
  cuda::runtime().record(slots_->event(node_.rank(), turn), stream);
  node_.synchronize();
  for (int local = 0; local < node_.size(); ++local) {
    if (local != node_.rank()) {
      cuda::runtime().wait(stream, slots_->event(local, turn));
    }
  }
}

void PeerExchange::reduce_in_place(const Call& call, const DeviceSegment& segment,
                                   const std::vector<std::size_t>& offsets) {
  const std::size_t element = call.element();
  const Range mine = slice(call.signature.count, ranks_, rank_, line / element);
  std::vector<void*> tensors(ranks_);
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    tensors[rank] = segment.part(static_cast<int>(rank)) + offsets[rank] + mine.begin * element;
  }
  const std::vector<const void*> sources(tensors.begin(), tensors.end());
  in_order(placement_of(call).stream, [&] {
    stream_barrier(placement_of(call).stream);
    if (mine.size() > 0) {
      cuda::runtime().reduce(tensors, sources, mine.size(),
                             reduction(call.signature, node_.size(), compute::Store::cached),
                             placement_of(call).stream);
    }
    stream_barrier(placement_of(call).stream);
  });
}

void PeerExchange::exchange(const Call& call) {
  const CallPieces pieces(call, node_.size(), node_.rank(), half_bytes_);
  in_order(placement_of(call).stream, [&] {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      pass(call, pieces.at(i));
    }
  });
}

std::byte* PeerExchange::slot(std::size_t rank) const {
  return slots_->part(static_cast<int>(rank)) + half_ * half_bytes_;
}

void PeerExchange::pass(const Call& call, const CallPiece& piece) {
  half_ = 1 - half_;
  for (const Move& move : piece.in) {
    cuda::runtime().copy(slot(rank_) + move.buffer, call.input + move.tensor, move.bytes, placement_of(call).stream);
  }
  stream_barrier(placement_of(call).stream);
  switch (call.signature.kind) {
    case CallKind::allreduce:
    case CallKind::reduce:
    case CallKind::reduce_scatter:
      reduce_piece(call, piece);
      return;
    case CallKind::broadcast:
    case CallKind::allgather:
    case CallKind::alltoall:
    case CallKind::gather:
    case CallKind::scatter:
    case CallKind::allgatherv:
      copy_piece(call, piece);
      return;
    case CallKind::barrier:
      throw Error(ErrorKind::internal, "a call without tensors was sent through slots of devices");
  }
}

// Reduces elements `part` of the slots, in rank order.
void PeerExchange::reduce(const Call& call, const Range& part, const std::vector<void*>& destinations) const {
  std::vector<const void*> sources(ranks_);
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    sources[rank] = slot(rank) + part.begin * call.element();
  }
  cuda::runtime().reduce(destinations, sources, part.size(),
                         reduction(call.signature, node_.size(), compute::Store::cached), placement_of(call).stream);
}

void PeerExchange::reduce_piece(const Call& call, const CallPiece& piece) {
  const std::size_t element = call.element();
  const std::size_t count = piece.call.signature.count;
  if (call.signature.kind != CallKind::allreduce || ranks_ * count * element <= whole_bytes) {
    const Range mine = call.signature.kind == CallKind::reduce_scatter ? block(count, ranks_, rank_) : Range{0, count};
    if (!piece.out.empty() && mine.size() > 0) {
      reduce(call, mine, {place(call, piece, 0)});
    }
    return;
  }
  const auto slice_of = [&](std::size_t rank) { return slice(count, ranks_, rank, line / element); };
  if (const Range mine = slice_of(rank_); mine.size() > 0) {
    reduce(call, mine, {slot(rank_) + mine.begin * element, place(call, piece, mine.begin * element)});
  }
  stream_barrier(placement_of(call).stream);
  for (std::size_t i = 1; i < ranks_; ++i) {
    const std::size_t peer = (rank_ + i) % ranks_;
    if (const Range theirs = slice_of(peer); theirs.size() > 0) {
      cuda::runtime().copy(place(call, piece, theirs.begin * element), slot(peer) + theirs.begin * element,
                           theirs.size() * element, placement_of(call).stream);
    }
  }
}

// Copies this rank's output from every rank's slot, or only from the root's.
void PeerExchange::copy_piece(const Call& call, const CallPiece& piece) const {
  const CallKind kind = call.signature.kind;
  const bool from_root = kind == CallKind::broadcast || kind == CallKind::scatter;
  const bool holds_blocks = kind == CallKind::alltoall || kind == CallKind::scatter;  // a slot has a block per rank
  const auto root = static_cast<std::size_t>(node_.local_rank_of(call.signature.root));
  const std::size_t count = piece.call.signature.count;
  if (piece.out.empty()) {
    return;
  }
  for (std::size_t i = 0; i < ranks_; ++i) {
    const std::size_t peer = (rank_ + i) % ranks_;  // begins with this rank, so that not all ranks read the same peer
    if (from_root && peer != root) {
      continue;
    }
    const std::size_t number = kind == CallKind::allgatherv ? piece.call.counts[peer] : count;
    const std::size_t from = holds_blocks ? rank_ * count : 0;
    const std::size_t to = from_root ? 0 : kind == CallKind::allgatherv ? displacement(piece.call, peer) : peer * count;
    if (number > 0) {
      cuda::runtime().copy(place(call, piece, to * call.element()), slot(peer) + from * call.element(),
                           number * call.element(), placement_of(call).stream);
    }
  }
}

}  // namespace gradientflow::collective

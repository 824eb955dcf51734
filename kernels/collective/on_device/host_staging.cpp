#include "host_staging.hpp"

#include <utility>

#include "../../base/error.hpp"
#include "../call/on_all_ranks.hpp"

namespace gradientflow::collective {
namespace {

namespace cuda = compute::cuda;
using transport::Signature;

std::unique_ptr<cuda::Pinned> pin(const transport::Segment& memory) {
  try {
    return std::make_unique<cuda::Pinned>(memory.mine(), memory.stride());
  } catch (const Error&) {
    return nullptr;  // the system does not pin so much memory: copies are slower, results are the same
  }
}

}  // namespace

// A rank may fail to get its resources; all ranks must know this before the first call.
HostStaging::HostStaging(Group& group)
    : group_(group), capacity_(group.config().host_piece_bytes), memory_(group.allocate(2 * slots * capacity_)) {
  on_all_ranks(group_.endpoint(), "cannot get what it takes to have tensors of its device pass through the host", [&] {
    down_ = std::make_unique<cuda::OwnedStream>();
    up_ = std::make_unique<cuda::OwnedStream>();
    begin_ = std::make_unique<cuda::OwnedEvent>();
    end_ = std::make_unique<cuda::OwnedEvent>();
    pinned_ = pin(*memory_);
    for (std::size_t i = 0; i < slots; ++i) {
      std::byte* const input = memory_->mine() + 2 * i * capacity_;
      slots_.push_back({input, input + capacity_, cuda::OwnedEvent(), cuda::OwnedEvent()});
    }
  });
}

// Waits for copies up.
HostStaging::~HostStaging() {
  try {
    cuda::runtime().synchronize(down_->get());
    cuda::runtime().synchronize(up_->get());
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): a device that has failed copies nothing any more
  }
}

// Rounds values, as on the host, only if they travel in messages. In hierarchical algorithms on one node, values do not
// travel in messages.
bool HostStaging::rounds(const Signature& signature) const {
  if (!signature.wire) {
    return false;
  }
  const Path path = group_.choose(on_host(signature), false).path;
  return group_.topology().nodes() > 1 || path == Path::ring || path == Path::recursive_doubling;
}

Signature HostStaging::on_host(Signature signature) {
  signature.memory = transport::Memory::host;
  return signature;
}

std::optional<std::size_t> HostStaging::run(const Call& call) {
  const cuda::Runtime& runtime = cuda::runtime();
  std::optional<std::size_t> nonfinite = rounds(call.signature) ? std::optional<std::size_t>(0) : std::nullopt;
  // Values that share a scale are rounded on the host, because the scale is in the messages.
  const std::optional<Wire> wire = call.signature.wire;
  const std::optional<DType> dtype = wire && nonfinite ? traits_of(*wire).dtype : std::nullopt;
  const bool rounded = dtype.has_value();
  Call whole = call;
  whole.signature = on_host(call.signature);
  if (dtype) {
    whole.signature.dtype = *dtype;
    whole.signature.wire.reset();
    whole.signature.op = call.signature.op == ReduceOp::mean ? ReduceOp::sum : call.signature.op;
  }
  if (rounded && rounded_.data() == nullptr) {
    on_all_ranks(group_.endpoint(), "cannot get memory of its device to round values in",
                 [&] { rounded_ = cuda::DeviceMemory(slots * capacity_); });
  }
  const CallPieces pieces(whole, group_.endpoint().size(), group_.endpoint().rank(), capacity_);
  runtime.record(begin_->get(), placement_of(call).stream);
  runtime.wait(down_->get(), begin_->get());
  runtime.wait(up_->get(), begin_->get());
  try {
    std::optional<CallPiece> below;  // piece that is being copied down, or has been
    for (std::size_t i = 0; i <= pieces.size(); ++i) {
      std::optional<CallPiece> next;
      if (i < pieces.size()) {
        next = pieces.at(i);
        copy_down(call, *next, i % slots, rounded);
      }
      if (below) {
        const std::size_t slot = (i - 1) % slots;
        const Call piece = call_on_host(std::move(below->call), slots_[slot]);
        runtime.synchronize_event(slots_[slot].down.get());
        const std::size_t found = group_.run(piece).nonfinite.value_or(0);
        if (nonfinite) {
          *nonfinite +=
              rounded ? compute::count_nonfinite(piece.output, piece.signature.dtype, piece.signature.count) : found;
        }
        copy_up(call, *below, slot, rounded);
      }
      below = std::move(next);
    }
  } catch (...) {  // the staging memory must not stay in use
    runtime.synchronize(down_->get());
    runtime.synchronize(up_->get());
    throw;
  }
  runtime.record(end_->get(), up_->get());
  runtime.wait(placement_of(call).stream, end_->get());
  return nonfinite;
}

// Copies a piece down, after the slot's previous piece has been copied up.
void HostStaging::copy_down(const Call& call, const CallPiece& piece, std::size_t index, bool rounded) {
  const cuda::Runtime& runtime = cuda::runtime();
  const Slot& slot = slots_[index];
  runtime.wait(down_->get(), slot.up.get());
  for (const Move& move : piece.in) {
    const std::byte* source = call.input + move.tensor;
    if (rounded) {
      const DType wire = piece.call.signature.dtype;
      const std::size_t count = move.bytes / size_of(wire);
      const bool divides = call.signature.op == ReduceOp::mean;
      std::byte* const target = rounded_.data() + index * capacity_ + move.buffer;
      runtime.cast(target, wire, call.input + move.tensor / size_of(wire) * call.element(), call.signature.dtype, count,
                   divides ? 1.0F / static_cast<float>(group_.endpoint().size()) : 1.0F, down_->get());
      source = target;
    }
    runtime.copy(slot.input + move.buffer, source, move.bytes, down_->get());
  }
  runtime.record(slot.down.get(), down_->get());
}

void HostStaging::copy_up(const Call& call, const CallPiece& piece, std::size_t index, bool rounded) {
  const cuda::Runtime& runtime = cuda::runtime();
  const Slot& slot = slots_[index];
  const std::byte* const buffer = transport::traits_of(call.signature.kind).is_in_place ? slot.input : slot.output;
  for (const Move& move : piece.out) {
    if (rounded) {
      const DType wire = piece.call.signature.dtype;
      std::byte* const source = rounded_.data() + index * capacity_ + move.buffer;
      runtime.copy(source, buffer + move.buffer, move.bytes, up_->get());
      runtime.cast(call.output + move.tensor / size_of(wire) * call.element(), call.signature.dtype, source, wire,
                   move.bytes / size_of(wire), 1.0F, up_->get());
    } else {
      runtime.copy(call.output + move.tensor, buffer + move.buffer, move.bytes, up_->get());
    }
  }
  runtime.record(slot.up.get(), up_->get());
}

Call HostStaging::call_on_host(Call piece, const Slot& slot) {
  piece.input = slot.input;
  piece.output = transport::traits_of(piece.signature.kind).is_in_place ? slot.input : slot.output;
  return piece;
}

}  // namespace gradientflow::collective

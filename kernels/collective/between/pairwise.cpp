#include "pairwise.hpp"

#include "../../base/error.hpp"
#include "windowed.hpp"

namespace gradientflow::collective {
namespace {

using transport::CallKind;
using transport::Purpose;
using transport::Request;

// A block of bytes of this rank's input or output; empty if this rank neither sends nor receives the block.
struct Block {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

// Blocks of a call: the block from rank `from` to rank `to`, in the input of `from` and in the output of `to`.
struct Blocks {
  const Call& call;
  std::size_t bytes;  // size of one block, except in allgatherv
  std::size_t root;

  [[nodiscard]] Block in_input(std::size_t from, std::size_t to) const { return at(from, to, true); }
  [[nodiscard]] Block in_output(std::size_t from, std::size_t to) const { return at(from, to, false); }

 private:
  [[nodiscard]] Block at(std::size_t from, std::size_t to, bool input) const {
    switch (call.signature.kind) {
      case CallKind::alltoall:
        return {(input ? to : from) * bytes, bytes};
      case CallKind::allgather:
        return {input ? 0 : from * bytes, bytes};
      case CallKind::allgatherv:
        return {input ? 0 : displacement(call, from) * call.element(), call.counts[from] * call.element()};
      case CallKind::gather:
        return to == root ? Block{input ? 0 : from * bytes, bytes} : Block{};
      case CallKind::scatter:
        return from == root ? Block{input ? to * bytes : 0, bytes} : Block{};
      case CallKind::barrier:
      case CallKind::allreduce:
      case CallKind::broadcast:
      case CallKind::reduce:
      case CallKind::reduce_scatter:
        break;
    }
    throw Error(ErrorKind::internal, "a call that has no blocks was sent pairwise");
  }
};

}  // namespace

void pairwise(const Lane& lane, const Call& call) {
  const std::size_t n = lane.size();
  const std::size_t me = lane.index;
  const Blocks blocks{call, call.bytes(), static_cast<std::size_t>(call.signature.root)};
  if (const Block own = blocks.in_input(me, me); own.bytes > 0) {
    compute::copy(call.output + blocks.in_output(me, me).offset, call.input + own.offset, own.bytes,
                  compute::Store::cached);
  }
  std::size_t longest = 0;
  for (std::size_t r = 0; r < n; ++r) {
    longest = std::max({longest, blocks.in_input(me, r).bytes, blocks.in_output(r, me).bytes});
  }
  const std::size_t segments = pieces(longest, lane.segments.bytes);
  // Segment t belongs to the block of step 1 + t / segments.
  const auto part = [&](const Block& block, std::size_t t) {
    return piece({block.offset, block.offset + block.bytes}, lane.segments.bytes, t % segments);
  };
  const auto post = [&](std::size_t t) {
    const std::size_t from = (me + n - (1 + t / segments)) % n;
    const Range range = part(blocks.in_output(from, me), t);
    return range.size() == 0
               ? Request()
               : lane.messages.receive(lane.ranks[from], Purpose::data, call.output + range.begin, range.size());
  };
  const auto send = [&](std::size_t t) {
    const std::size_t to = (me + 1 + t / segments) % n;
    const Range range = part(blocks.in_input(me, to), t);
    return range.size() == 0
               ? Request()
               : lane.messages.send(lane.ranks[to], Purpose::data, call.input + range.begin, range.size());
  };
  run_windowed(lane.messages, (n - 1) * segments, lane.segments.window, post, [](std::size_t) {}, send);
}

}  // namespace gradientflow::collective

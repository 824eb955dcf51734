#include "pairwise_allreduce.hpp"

namespace gradientflow::collective {
namespace {

using transport::Purpose;
using transport::Request;

}  // namespace

PairwiseAllreduce::PairwiseAllreduce(const Lane& lane, Operands& operands, Scratch& scratch)
    : lane_(lane), operands_(operands), scratch_(scratch), incoming_(lane.size()), outgoing_(lane.size()) {}

Range PairwiseAllreduce::slice_of(std::size_t member) const {
  return slice(operands_.count(), lane_.size(), member, 64 / operands_.element());
}

// Buffers of one slice each. Segments hold contributions to members, then contributions or results from members;
// further buffers hold values.
std::byte* PairwiseAllreduce::segment(std::size_t index) { return scratch_.at(index, largest_part()); }
std::byte* PairwiseAllreduce::values(std::size_t index) {
  return scratch_.at(index, slice_of(0).size() * operands_.element());
}

std::span<const std::byte> PairwiseAllreduce::part_for(std::size_t to) {
  const Range range = slice_of(to);
  std::byte* const buffer = segment(to);
  const std::byte* part = operands_.contribute_into(range, operands_.cast() ? values(2 * lane_.size()) : buffer);
  if (operands_.cast()) {
    operands_.encode(buffer, part, range.size(), false);
    part = buffer;
  }
  return {part, operands_.segment_bytes(range.size())};
}

Request PairwiseAllreduce::receive_result(std::size_t from) {
  const Range range = slice_of(from);
  std::byte* const to = operands_.cast() ? segment(lane_.size() + from) : operands_.partial(range);
  const std::size_t bytes = operands_.segment_bytes(range.size());
  return bytes == 0 ? Request() : lane_.messages.receive(lane_.ranks[from], Purpose::data, to, bytes);
}

void PairwiseAllreduce::finish(std::span<const std::byte* const> parts) {
  const std::size_t n = lane_.size();
  const std::size_t me = lane_.index;
  const Range mine = slice_of(me);
  const auto others = [&](auto act) {
    for (std::size_t k = 1; k < n; ++k) {
      act((me + k) % n);
    }
  };
  others([&](std::size_t peer) { incoming_[peer] = receive_result(peer); });
  std::vector<const std::byte*> addends(parts.begin(), parts.end());
  addends[me] = operands_.contribute_into(mine, values(2 * n));
  if (operands_.cast()) {
    others([&](std::size_t peer) {
      std::byte* const decoded = values(2 * n + 1 + peer);
      operands_.decode(decoded, parts[peer], mine.size(), false);
      addends[peer] = decoded;
    });
  }
  std::byte* const wire = segment(me);
  operands_.conclude_all(mine, addends, wire);
  others([&](std::size_t peer) {
    if (mine.size() > 0) {
      outgoing_[peer] = lane_.messages.send(lane_.ranks[peer], Purpose::data,
                                            operands_.cast() ? wire : operands_.partial(mine), part_bytes());
    }
  });
  others([&](std::size_t peer) {
    lane_.messages.wait(incoming_[peer]);
    operands_.deliver(slice_of(peer), operands_.cast() ? segment(n + peer) : nullptr);
  });
  others([&](std::size_t peer) { lane_.messages.wait(outgoing_[peer]); });
}

void pairwise_allreduce(const Lane& lane, Operands& operands, Scratch& scratch) {
  const std::size_t n = lane.size();
  PairwiseAllreduce exchange(lane, operands, scratch);
  std::vector<Request> incoming(n);
  std::vector<Request> outgoing(n);
  std::vector<const std::byte*> parts(n);
  for (std::size_t k = 1; k < n; ++k) {
    const std::size_t from = (lane.index + n - k) % n;
    std::byte* const room = exchange.room_for_part(from);
    parts[from] = room;
    if (exchange.part_bytes() > 0) {
      incoming[from] = lane.messages.receive(lane.ranks[from], Purpose::data, room, exchange.part_bytes());
    }
  }
  for (std::size_t k = 1; k < n; ++k) {
    const std::size_t to = (lane.index + k) % n;
    const std::span<const std::byte> part = exchange.part_for(to);
    if (!part.empty()) {
      outgoing[to] = lane.messages.send(lane.ranks[to], Purpose::data, part.data(), part.size());
    }
  }
  for (std::size_t member = 0; member < n; ++member) {
    lane.messages.wait(incoming[member]);
    lane.messages.wait(outgoing[member]);
  }
  exchange.finish(parts);
}

}  // namespace gradientflow::collective

#include "pairwise_allreduce.hpp"

namespace gradientflow::collective {
namespace {

using transport::Purpose;
using transport::Request;

}  // namespace

PairwiseAllreduce::PairwiseAllreduce(const Lane& lane, Operands& operands, Scratch& scratch)
    : lane_(lane),
      operands_(operands),
      scratch_(scratch),
      element_(operands.element()),
      wire_element_(operands.wire_element()),
      incoming_(lane.size()),
      outgoing_(lane.size()) {}

Range PairwiseAllreduce::slice_of(std::size_t member) const {
  return slice(operands_.count(), lane_.size(), member, 64 / element_);
}

// Buffers of one slice each: contributions to the members; contributions or results from them; decoded values.
std::byte* PairwiseAllreduce::slot(std::size_t index, std::size_t element) {
  return scratch_.at(index, slice_of(0).size() * element);
}

std::span<const std::byte> PairwiseAllreduce::part_for(std::size_t to) {
  const Range range = slice_of(to);
  std::byte* const buffer = slot(to, wire_element_);
  const std::byte* values =
      operands_.contribute_apart(range, operands_.cast() ? slot(2 * lane_.size(), element_) : buffer);
  if (operands_.cast()) {
    operands_.encode(buffer, values, range.size(), false);
    values = buffer;
  }
  return {values, range.size() * wire_element_};
}

Request PairwiseAllreduce::receive_result(std::size_t from) {
  const Range range = slice_of(from);
  std::byte* const to = operands_.cast() ? slot(lane_.size() + from, wire_element_) : operands_.partial(range);
  return range.size() == 0 ? Request()
                           : lane_.messages.receive(lane_.ranks[from], Purpose::data, to, range.size() * wire_element_);
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
  std::vector<const std::byte*> values(parts.begin(), parts.end());
  values[me] = operands_.contribute_apart(mine, slot(2 * n, element_));
  if (operands_.cast()) {
    others([&](std::size_t peer) {
      std::byte* const decoded = slot(2 * n + 1 + peer, element_);
      operands_.decode(decoded, parts[peer], mine.size(), false);
      values[peer] = decoded;
    });
  }
  std::byte* const wire = slot(me, wire_element_);
  operands_.conclude_all(mine, values, wire);
  others([&](std::size_t peer) {
    if (mine.size() > 0) {
      outgoing_[peer] =
          lane_.messages.send(lane_.ranks[peer], Purpose::data, operands_.cast() ? wire : operands_.partial(mine),
                              mine.size() * wire_element_);
    }
  });
  others([&](std::size_t peer) {
    lane_.messages.wait(incoming_[peer]);
    operands_.deliver(slice_of(peer), operands_.cast() ? slot(n + peer, wire_element_) : nullptr);
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

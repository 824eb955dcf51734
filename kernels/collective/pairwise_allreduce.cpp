#include "pairwise_allreduce.hpp"

#include <vector>

namespace gradientflow::collective {
namespace {

using transport::Message;
using transport::Purpose;

}  // namespace

void pairwise_allreduce(const Lane& lane, Operands& operands, Scratch& scratch) {
  const std::size_t n = lane.size();
  const std::size_t me = lane.index;
  const std::size_t element = operands.element();
  const std::size_t wire_element = operands.wire_element();
  const auto slice_of = [&](std::size_t i) { return slice(operands.count(), n, i, 64 / element); };
  const std::size_t longest = slice_of(0).size();
  const auto slot = [&](std::size_t i) { return scratch.at(i, longest * wire_element); };
  const auto sending_slot = [&](std::size_t i) { return scratch.at(n + i, longest * wire_element); };
  const auto receive = [&](std::size_t from, std::byte* data, const Range& range) {
    return range.size() == 0
               ? Message()
               : lane.messages.receive(lane.ranks[from], Purpose::data, data, range.size() * wire_element);
  };
  const auto send = [&](std::size_t to, const std::byte* data, const Range& range) {
    return range.size() == 0 ? Message()
                             : lane.messages.send(lane.ranks[to], Purpose::data, data, range.size() * wire_element);
  };
  const Range mine = slice_of(me);
  std::vector<Message> incoming(n);
  std::vector<Message> outgoing(n);

  // Everybody's values of my slice, and mine of theirs.
  for (std::size_t k = 1; k < n; ++k) {
    const std::size_t from = (me + n - k) % n;
    incoming[from] = receive(from, slot(from), mine);
  }
  for (std::size_t k = 1; k < n; ++k) {
    const std::size_t to = (me + k) % n;
    const Range range = slice_of(to);
    const std::byte* values = operands.bring(range);
    if (operands.cast()) {
      operands.encode(sending_slot(to), values, range.size(), false);
      values = sending_slot(to);
    }
    outgoing[to] = send(to, values, range);
  }
  std::vector<const std::byte*> operands_of(n);
  operands_of[me] = operands.bring(mine);
  for (std::size_t k = 1; k < n; ++k) {
    const std::size_t from = (me + n - k) % n;
    lane.messages.wait(incoming[from]);
    operands_of[from] = slot(from);
    if (operands.cast()) {
      std::byte* const values = scratch.at(2 * n + from, longest * element);
      operands.decode(values, slot(from), mine.size(), false);
      operands_of[from] = values;
    }
  }
  operands.conclude_all(mine, operands_of, sending_slot(me));

  // The result of my slice to everybody, and those of theirs to their places, which what was sent has left by then.
  for (std::size_t k = 1; k < n; ++k) {
    const std::size_t peer = (me + k) % n;
    const Range range = slice_of(peer);
    lane.messages.wait(outgoing[peer]);
    incoming[peer] = receive(peer, operands.cast() ? slot(peer) : operands.partial(range), range);
    outgoing[peer] = send(peer, operands.cast() ? sending_slot(me) : operands.partial(mine), mine);
  }
  for (std::size_t k = 1; k < n; ++k) {
    const std::size_t from = (me + n - k) % n;
    lane.messages.wait(incoming[from]);
    operands.deliver(slice_of(from), operands.cast() ? slot(from) : nullptr);
  }
  for (Message& message : outgoing) {
    lane.messages.wait(message);
  }
}

}  // namespace gradientflow::collective

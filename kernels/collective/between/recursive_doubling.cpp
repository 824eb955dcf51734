#include "recursive_doubling.hpp"

#include <bit>

#include "windowed.hpp"

namespace gradientflow::collective {

std::vector<Round> doubling_rounds(std::size_t size, std::size_t index) {
  const std::size_t core = std::bit_floor(size);  // rank core + i has rank i as its partner
  if (index >= core) {
    return {{index - core, true, false}, {index - core, false, true}};
  }
  std::vector<Round> rounds;
  const bool has_follower = index + core < size;
  if (has_follower) {
    rounds.push_back({index + core, false, true});
  }
  for (std::size_t distance = 1; distance < core; distance *= 2) {
    rounds.push_back({index ^ distance, true, true});
  }
  if (has_follower) {
    rounds.push_back({index + core, true, false});
  }
  return rounds;
}

void recursive_doubling(const Lane& lane, Operands& operands, Scratch& scratch) {
  const std::vector<Round> rounds = doubling_rounds(lane.size(), lane.index);
  const std::size_t element = operands.element();
  const std::size_t segment = operands.segment_values(lane.segments.bytes);
  const std::size_t segments = std::max<std::size_t>(pieces(operands.count(), segment), 1);  // segments of the tensor
  const std::size_t window = std::min(lane.segments.window, segments);

  const auto round_of = [&](std::size_t t) { return rounds[t / segments]; };
  const auto range_of = [&](std::size_t t) { return piece({0, operands.count()}, segment, t % segments); };
  const auto is_first = [&](std::size_t t) { return t < segments; };
  // Two predicates of segment t's round: this rank has the result after the round; the round only sends or receives the
  // result.
  const auto is_last_exchange = [&](std::size_t t) {
    return t / segments + 1 == rounds.size() || !rounds[t / segments + 1].receives;
  };
  const auto is_finished = [&](std::size_t t) { return !is_first(t) && !(round_of(t).sends && round_of(t).receives); };
  const auto slot = [&](std::size_t t) { return scratch.at(t % window, lane.segments.bytes); };
  const auto sending_slot = [&](std::size_t t) { return scratch.at(window + t % window, lane.segments.bytes); };
  std::byte* const mine = scratch.at(2 * window, segment * element);
  std::byte* const theirs = scratch.at(2 * window + 1, segment * element);

  const auto post = [&](std::size_t t) {
    const Round round = round_of(t);
    const Range range = range_of(t);
    if (!round.receives || range.size() == 0) {
      return transport::Request();
    }
    std::byte* const to = is_finished(t) && !operands.cast() ? operands.partial(range) : slot(t);
    return lane.messages.receive(lane.ranks[round.peer], transport::Purpose::data, to,
                                 operands.segment_bytes(range.size()));
  };
  const auto send = [&](std::size_t t) {
    const Round round = round_of(t);
    const Range range = range_of(t);
    if (!round.sends || range.size() == 0) {
      return transport::Request();
    }
    const std::byte* from = is_first(t) ? operands.contribute(range) : operands.partial(range);
    if (operands.cast()) {
      operands.encode(sending_slot(t), from, range.size(), is_finished(t));
      from = sending_slot(t);
    }
    return lane.messages.send(lane.ranks[round.peer], transport::Purpose::data, from,
                              operands.segment_bytes(range.size()));
  };
  const auto exchanged = [&](std::size_t t) {
    const Range range = range_of(t);
    const bool lower = lane.index < round_of(t).peer;
    const std::byte* own = is_first(t) ? operands.own(range) : operands.partial(range);
    const std::byte* other = slot(t);
    if (operands.cast()) {  // both sides combine the rounded values
      operands.decode(mine, sending_slot(t), range.size(), false);
      operands.decode(theirs, slot(t), range.size(), false);
      own = mine;
      other = theirs;
    }
    const bool final = is_last_exchange(t);
    operands.merge(range, lower ? own : other, lower ? other : own, final && !operands.cast());
    if (final && operands.cast()) {
      operands.encode(mine, operands.partial(range), range.size(), false);
      operands.deliver(range, mine);
    }
  };
  const auto take = [&](std::size_t t) {
    const Round round = round_of(t);
    if (is_finished(t)) {
      if (round.receives) {
        operands.deliver(range_of(t), operands.cast() ? slot(t) : nullptr);
      }
    } else if (round.sends && round.receives) {
      exchanged(t);
    } else if (round.receives) {
      operands.combine(range_of(t), slot(t), mine);
    }
  };
  run_windowed(lane.messages, rounds.size() * segments, window, post, take, send);
}

}  // namespace gradientflow::collective

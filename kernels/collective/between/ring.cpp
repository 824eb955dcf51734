#include "ring.hpp"

#include <array>
#include <utility>
#include <vector>

#include "windowed.hpp"

namespace gradientflow::collective {
namespace {

using transport::Purpose;
using transport::Request;

// Schedule of the elements of segment t. In step s a rank receives the chunk `s + 1` places before its own, and sends
// the chunk that it received in the step before. `shift` rotates the ring: rank r ends the reduce-scatter with chunk r
// + 1 if `shift` is 0, and with chunk r if it is 1.
class Schedule {
 public:
  Schedule(const Lane& lane, std::vector<Range> chunks, std::size_t segment, std::size_t shift)
      : chunks_(std::move(chunks)), segment_(segment), start_(lane.index + 2 * chunks_.size() - shift) {
    for (const Range& chunk : chunks_) {
      segments_ = std::max(segments_, pieces(chunk.size(), segment));
    }
  }

  [[nodiscard]] std::size_t segments() const { return segments_; }  // number of segments of a chunk
  [[nodiscard]] std::size_t step(std::size_t t) const { return t / segments_; }
  [[nodiscard]] Range sent(std::size_t t) const { return at(start_ - step(t), t); }
  [[nodiscard]] Range received(std::size_t t) const { return at(start_ - step(t) - 1, t); }

 private:
  [[nodiscard]] Range at(std::size_t chunk, std::size_t t) const {
    return piece(chunks_[chunk % chunks_.size()], segment_, t % segments_);
  }

  std::vector<Range> chunks_;
  std::size_t segment_;
  std::size_t start_;
  std::size_t segments_ = 1;
};

Request receive_into(const Lane& lane, std::byte* data, std::size_t bytes) {
  return bytes == 0 ? Request() : lane.messages.receive(lane.left(), Purpose::data, data, bytes);
}

Request send_from(const Lane& lane, const std::byte* data, std::size_t bytes) {
  return bytes == 0 ? Request() : lane.messages.send(lane.right(), Purpose::data, data, bytes);
}

}  // namespace

void ring_allreduce(const Lane& lane, Operands& operands, Scratch& scratch) {
  const std::size_t n = lane.size();
  const std::size_t element = operands.element();
  std::vector<Range> chunks;
  for (std::size_t c = 0; c < n; ++c) {
    chunks.push_back(slice(operands.count(), n, c, 64 / element));
  }
  const std::size_t segment = operands.segment_values(lane.segments.bytes);
  const Schedule schedule(lane, std::move(chunks), segment, 0);
  const std::size_t window = std::min(lane.segments.window, schedule.segments());
  const std::size_t last_sum = n - 2;  // step in which sums become complete

  // Partial sums, and all values in a wire dtype, arrive in slots; results arrive in place. A range is sent before a
  // result is received into it: the send comes (n - 1) chunks earlier.
  const auto slot = [&](std::size_t t) { return scratch.at(t % window, lane.segments.bytes); };
  const auto sending_slot = [&](std::size_t t) { return scratch.at(window + t % window, lane.segments.bytes); };
  std::byte* const values = scratch.at(2 * window, segment * element);

  const auto post = [&](std::size_t t) {
    const Range range = schedule.received(t);
    const bool in_place = schedule.step(t) > last_sum && !operands.cast();
    return receive_into(lane, in_place ? operands.partial(range) : slot(t), operands.segment_bytes(range.size()));
  };
  const auto take = [&](std::size_t t) {
    const Range range = schedule.received(t);
    if (schedule.step(t) < last_sum) {
      operands.combine(range, slot(t), values);
    } else if (schedule.step(t) == last_sum) {
      operands.conclude(range, slot(t), values);
    } else {
      operands.deliver(range, operands.cast() ? slot(t) : nullptr);
    }
  };
  const auto send = [&](std::size_t t) {
    const Range range = schedule.sent(t);
    const std::byte* from = schedule.step(t) == 0 ? operands.contribute(range) : operands.partial(range);
    if (operands.cast()) {
      operands.encode(sending_slot(t), from, range.size(), schedule.step(t) > last_sum);
      from = sending_slot(t);
    }
    return send_from(lane, from, operands.segment_bytes(range.size()));
  };
  run_windowed(lane.messages, 2 * (n - 1) * schedule.segments(), window, post, take, send);
}

namespace {

// Makes a reduce-scatter of the elements `chunks`, one chunk for each rank.
void reduce_scatter_chunks(const Lane& lane, const Call& call, std::vector<Range> chunks, std::byte* output,
                           Scratch& scratch) {
  const std::size_t n = lane.size();
  const std::size_t element = call.element();
  const Range mine = chunks[lane.index];
  const Schedule schedule(lane, std::move(chunks), lane.segments.bytes / element, 1);
  const std::size_t window = std::min(lane.segments.window, schedule.segments());
  const std::size_t last_sum = n - 2;
  const std::size_t waiting = schedule.segments() + window;  // number of sums that are not sent yet
  const auto slot = [&](std::size_t t) { return scratch.at(t % window, lane.segments.bytes); };
  const auto sum_slot = [&](std::size_t t) { return scratch.at(window + t % waiting, lane.segments.bytes); };
  const PartialReduction parts{call.signature.dtype, call.signature.op, static_cast<int>(n)};
  // Returns this rank's values as a partial result: divided in `buffer`, or the input itself.
  const auto own = [&](const Range& range, std::byte* buffer) {
    const std::byte* const values = call.input + range.begin * element;
    if (!parts.divides_first()) {
      return values;
    }
    void* const target = buffer;
    const void* const source = values;
    compute::reduce({&target, 1}, {&source, 1}, range.size(), parts.begin());
    return static_cast<const std::byte*>(buffer);
  };

  const auto post = [&](std::size_t t) { return receive_into(lane, slot(t), schedule.received(t).size() * element); };
  const auto take = [&](std::size_t t) {
    const Range range = schedule.received(t);
    const bool complete = schedule.step(t) == last_sum;
    std::byte* const sum = sum_slot(t + schedule.segments());
    const std::array<const void*, 2> sources = {slot(t), own(range, sum)};
    void* const target = complete ? output + (range.begin - mine.begin) * element : sum;
    compute::reduce({&target, 1}, sources, range.size(), complete ? parts.finish() : parts.join());
  };
  const auto send = [&](std::size_t t) {
    const Range range = schedule.sent(t);
    return send_from(lane, schedule.step(t) == 0 ? own(range, sum_slot(t)) : sum_slot(t), range.size() * element);
  };
  run_windowed(lane.messages, (n - 1) * schedule.segments(), window, post, take, send);
}

}  // namespace

// Works in rounds, each over a piece of every block, so that unsent sums need little memory.
void ring_reduce_scatter(const Lane& lane, const Call& call, Scratch& scratch) {
  constexpr std::size_t round_segments = 64;
  const std::size_t length = round_segments * (lane.segments.bytes / call.element());
  const auto block_of = [&](std::size_t rank) { return block(call.signature.count, lane.size(), rank); };
  const std::size_t rounds = pieces(block_of(0).size(), length);
  for (std::size_t k = 0; k < rounds; ++k) {
    std::vector<Range> chunks;
    for (std::size_t c = 0; c < lane.size(); ++c) {
      chunks.push_back(piece(block_of(c), length, k));
    }
    reduce_scatter_chunks(lane, call, std::move(chunks), call.output + k * length * call.element(), scratch);
  }
}

void ring_allgather(const Lane& lane, const Call& call) {
  const std::size_t n = lane.size();
  const std::size_t element = call.element();
  std::vector<Range> chunks;
  std::size_t begin = 0;
  for (std::size_t c = 0; c < n; ++c) {
    const std::size_t count =
        call.signature.kind == transport::CallKind::allgatherv ? call.counts[c] : call.signature.count;
    chunks.push_back({begin, begin + count});
    begin += count;
  }
  const Range mine = chunks[lane.index];
  compute::copy(call.output + mine.begin * element, call.input, mine.size() * element, compute::Store::cached);
  const Schedule schedule(lane, std::move(chunks), lane.segments.bytes / element, 0);
  const std::size_t window = std::min(lane.segments.window, schedule.segments());
  const auto place = [&](const Range& range) { return call.output + range.begin * element; };
  const auto post = [&](std::size_t t) {
    const Range range = schedule.received(t);
    return receive_into(lane, place(range), range.size() * element);
  };
  const auto take = [](std::size_t) {};
  const auto send = [&](std::size_t t) {
    const Range range = schedule.sent(t);
    return send_from(lane, place(range), range.size() * element);
  };
  run_windowed(lane.messages, (n - 1) * schedule.segments(), window, post, take, send);
}

}  // namespace gradientflow::collective

#include "lane.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace gradientflow::collective {

std::byte* Scratch::at(std::size_t index, std::size_t bytes) {
  constexpr std::size_t cache_line = 64;
  if (buffers_.size() <= index) {
    buffers_.resize(index + 1);
  }
  std::vector<std::byte>& buffer = buffers_[index];
  if (buffer.size() < bytes + cache_line) {
    buffer.resize(bytes + cache_line);
  }
  const auto address = reinterpret_cast<std::uintptr_t>(buffer.data());
  return buffer.data() + (cache_line - address % cache_line) % cache_line;
}

Operands::Operands(std::vector<const std::byte*> inputs, std::vector<std::byte*> outputs, std::size_t count,
                   const How& how)
    : inputs_(std::move(inputs)),
      outputs_(std::move(outputs)),
      count_(count),
      how_(how),
      element_(size_of(how.parts.dtype)),
      sources_(std::max<std::size_t>(inputs_.size() + 1, 2)),
      targets_(outputs_.size()) {}

void Operands::reduce_sources(const Range& range, std::size_t sources, const compute::Reduction& how, bool everywhere) {
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    targets_[i] = outputs_[i] + range.begin * element_;
  }
  compute::reduce({targets_.data(), everywhere ? targets_.size() : 1}, {sources_.data(), sources}, range.size(), how);
}

void Operands::list_inputs(const Range& range, std::size_t place) {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    sources_[place + i] = inputs_[i] + range.begin * element_;
  }
}

void Operands::conclude_alone() {
  list_inputs({0, count_}, 0);
  const PartialReduction parts = how_.parts;
  reduce_sources({0, count_}, inputs_.size(), parts.divides_first() ? parts.begin() : parts.finish(), true);
}

void Operands::merge(const Range& range, const std::byte* first, const std::byte* second, bool final) {
  sources_[0] = first;
  sources_[1] = second;
  reduce_sources(range, 2, final ? how_.parts.finish() : how_.parts.join(), final);
}

void Operands::add_inputs(const Range& range, const std::byte* received, bool final) {
  std::size_t sources = inputs_.size() + 1;
  if (how_.parts.divides_first()) {
    sources_[1] = contribute(range);
    sources = 2;
  } else {
    list_inputs(range, 1);
  }
  sources_[0] = received;
  reduce_sources(range, sources, final ? how_.parts.finish() : how_.parts.join(), final);
}

bool Operands::contributes_input() const { return inputs_.size() == 1 && !how_.parts.divides_first(); }

const std::byte* Operands::own(const Range& range) const {
  return contributes_input() ? inputs_.front() + range.begin * element_ : partial(range);
}

const std::byte* Operands::contribute(const Range& range) {
  if (!contributes_input()) {
    list_inputs(range, 0);
    reduce_sources(range, inputs_.size(), how_.parts.begin(), false);
  }
  return own(range);
}

const std::byte* Operands::contribute_into(const Range& range, std::byte* buffer) {
  if (contributes_input()) {
    return own(range);
  }
  list_inputs(range, 0);
  void* const target = buffer;
  compute::reduce({&target, 1}, {sources_.data(), inputs_.size()}, range.size(), how_.parts.begin());
  return buffer;
}

void Operands::combine(const Range& range, const std::byte* received, std::byte* scratch) {
  if (cast()) {
    decode(scratch, received, range.size(), false);
    received = scratch;
  }
  add_inputs(range, received, false);
}

// With a cast, rounds the owner's result too, so that all members get the same bits.
void Operands::conclude(const Range& range, const std::byte* received, std::byte* scratch) {
  if (!cast()) {
    add_inputs(range, received, true);
    return;
  }
  combine(range, received, scratch);
  encode(scratch, partial(range), range.size(), false);
  deliver(range, scratch);
}

void Operands::conclude_all(const Range& range, std::span<const std::byte* const> operands, std::byte* wire) {
  if (range.size() == 0) {
    return;
  }
  sources_.resize(std::max(sources_.size(), operands.size()));
  std::copy(operands.begin(), operands.end(), sources_.begin());
  reduce_sources(range, operands.size(), cast() ? how_.parts.join() : how_.parts.finish(), !cast());
  if (cast()) {
    encode(wire, partial(range), range.size(), false);
    deliver(range, wire);
  }
}

void Operands::deliver(const Range& range, const std::byte* received) {
  if (received != nullptr) {
    decode(partial(range), received, range.size(), true);
    nonfinite_ += compute::count_nonfinite(partial(range), how_.parts.dtype, range.size());
  }
  for (std::size_t i = 1; i < outputs_.size(); ++i) {
    compute::copy(outputs_[i] + range.begin * element_, partial(range), range.size() * element_,
                  compute::Store::cached);
  }
}

void Operands::encode(std::byte* wire, const std::byte* values, std::size_t count, bool final) const {
  const bool predivide = how_.parts.op == ReduceOp::mean && !final;
  compute::encode(how_.wire.value_or(Wire::float32), wire, values, count,
                  predivide ? 1.0F / static_cast<float>(how_.parts.ranks) : 1.0F);
}

void Operands::decode(std::byte* values, const std::byte* wire, std::size_t count, bool final) const {
  const bool predivided = how_.parts.op == ReduceOp::mean && !final;
  compute::decode(how_.wire.value_or(Wire::float32), values, wire, count,
                  predivided ? static_cast<float>(how_.parts.ranks) : 1.0F);
}

}  // namespace gradientflow::collective

#include "pooled_slices.hpp"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "../../base/config.hpp"
#include "../call/partition.hpp"

namespace gradientflow::collective {
namespace {

constexpr std::size_t slice_bytes = 256 * kib;  // bytes per tensor at a time, to read them from memory only once

}  // namespace

PooledSlices::PooledSlices(std::shared_ptr<transport::Segment> segment, int ranks, int rank)
    : segment_(std::move(segment)), ranks_(ranks), rank_(rank) {}

std::uint64_t& PooledSlices::counter(int rank) const noexcept {
  return *reinterpret_cast<std::uint64_t*>(segment_->part(rank) + segment_->stride() - extra_bytes);
}

void PooledSlices::publish(std::uint64_t number) noexcept {
  std::atomic_ref(counter(rank_)).store(number, std::memory_order_release);
}

std::uint64_t PooledSlices::complete_everywhere() const noexcept {
  std::uint64_t least = UINT64_MAX;
  for (int r = 0; r < ranks_; ++r) {
    least = std::min(least, std::atomic_ref(counter(r)).load(std::memory_order_acquire));
  }
  return least;
}

void PooledSlices::reduce(const Call& call, std::size_t offset) const {
  const std::size_t element = call.element();
  const Range mine =
      slice(call.signature.count, static_cast<std::size_t>(ranks_), static_cast<std::size_t>(rank_), 64 / element);
  const std::size_t length = slice_bytes / element;
  std::vector<void*> tensors(static_cast<std::size_t>(ranks_));
  std::vector<const void*> sources(tensors.size());
  for (std::size_t i = 0; i < pieces(mine.size(), length); ++i) {
    const Range part = piece(mine, length, i);
    for (int r = 0; r < ranks_; ++r) {
      const auto index = static_cast<std::size_t>(r);
      sources[index] = tensors[index] = segment_->part(r) + offset + part.begin * element;
    }
    compute::reduce(tensors, sources, part.size(), reduction(call.signature, ranks_, compute::Store::cached));
  }
}

}  // namespace gradientflow::collective

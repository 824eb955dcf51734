// Reduction of the ranges of a gradient pool inside a node, by the threads that use the pool, without a progress
// thread. Every rank publishes the number of its complete ranges. From time to time a rank takes the ranges that are
// complete on all ranks, and reduces its own slice of them for all ranks. No rank waits: remaining ranges are reduced
// after a barrier at the end, and another barrier precedes the use of the results. So a range is reduced while it is
// still in the caches, and no core switches between threads. Every element is computed once, by one rank: all ranks get
// the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "../../transport/node/node.hpp"
#include "../call/call.hpp"

namespace gradientflow::collective {

class PooledSlices {
 public:
  // Extra bytes after the tensors of a rank's segment, for the number of complete ranges of that rank.
  static constexpr std::size_t extra_bytes = 64;

  PooledSlices(std::shared_ptr<transport::Segment> segment, int ranks, int rank);

  // Publishes the number of complete ranges of this rank, counted over all iterations. Release order: readers also see
  // the data.
  void publish(std::uint64_t number) noexcept;
  [[nodiscard]] std::uint64_t complete_everywhere() const noexcept;

  // Reduces this rank's slice of the tensors at `offset` of all ranks, in place.
  void reduce(const Call& call, std::size_t offset) const;

 private:
  [[nodiscard]] std::uint64_t& counter(int rank) const noexcept;

  std::shared_ptr<transport::Segment> segment_;
  int ranks_;
  int rank_;
};

}  // namespace gradientflow::collective

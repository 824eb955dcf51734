// Fusion of a gradient pool's tensors into ranges (GradientFlow paper, section 3.1: lazy allreduce).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "../../base/config.hpp"

namespace gradientflow::engine {

// Bounds of the automatic threshold of a gradient pool.
inline constexpr std::size_t fusion_bytes = 8 * mib;  // least size at which an allreduce's time depends on bytes alone
inline constexpr std::size_t hot_bytes = 256 * kib;   // bytes that stay in the caches until all ranks are ready
// Bounds between nodes, for chunks and for entries.
inline constexpr std::size_t chunks_bytes = 512 * kib;  // few chunks are sent: small ranges begin sooner
inline constexpr std::size_t entries_bytes = 16 * kib;  // least size at which bytes cost more than latency

// Returns the threshold of a gradient pool of `bytes` bytes. Between nodes the threshold is a share of `bytes`, so that
// all ranges but the last travel during backpropagation, but not so small that latency counts. There it ignores
// transport and timing, so a rerun has the same ranges and the same bits. Inside a node, where bits do not depend on
// ranges, the threshold suits the threads that reduce: the callers of `ready`, or a progress thread.
[[nodiscard]] std::size_t automatic_threshold(std::size_t bytes, int nodes, bool callers_reduce);

struct TensorRange {  // tensors from `begin` up to and without `end`
  std::size_t begin;
  std::size_t end;
};

// Fuses tensors, in the order in which they lie in memory, into ranges of `threshold` bytes or more; the last range may
// have fewer. The ranges depend on nothing else, so all ranks have the same. No range has 0 bytes: if all tensors have
// 0 bytes, there are no ranges.
[[nodiscard]] std::vector<TensorRange> fuse(std::span<const std::size_t> bytes, std::size_t threshold);

}  // namespace gradientflow::engine

// Which tensors of a gradient pool travel together (GradientFlow paper, section 3.1: lazy allreduce).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "../../base/config.hpp"

namespace gradientflow::engine {

// The bounds of the threshold that a gradient pool takes if none is given.
inline constexpr std::size_t fusion_bytes = 8 * mib;  // from here on the time of an allreduce is that of its bytes
inline constexpr std::size_t hot_bytes = 256 * kib;   // stay in the caches until all ranks are ready
// The same between nodes, for chunks and for entries.
inline constexpr std::size_t chunks_bytes = 512 * kib;  // few chunks are sent: small ranges begin sooner
inline constexpr std::size_t entries_bytes = 16 * kib;  // from here on bytes cost more than latency

// The threshold of a gradient pool of so many bytes to which none is given. Between nodes a share of them, so that all
// but the last range travel during backpropagation; not so small that latency counts. Neither transport nor timing
// matters there, so a rerun has the same ranges, and bits. Inside a node, where bits do not depend on ranges, what
// suits those who reduce: the callers of `ready`, or a thread.
[[nodiscard]] std::size_t automatic_threshold(std::size_t bytes, int nodes, bool callers_reduce);

struct TensorRange {  // from tensor `begin` up to and without tensor `end`
  std::size_t begin;
  std::size_t end;
};

// Fuses tensors, in the order in which they lie in memory, into ranges of `threshold` bytes or more; the last range may
// have fewer. The ranges depend on nothing else, so all ranks have the same. No range has 0 bytes: if all tensors have,
// there are no ranges.
[[nodiscard]] std::vector<TensorRange> fuse(std::span<const std::size_t> bytes, std::size_t threshold);

}  // namespace gradientflow::engine

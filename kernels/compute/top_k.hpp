// Kernels of sparse communication by entry (LAGS-SGD paper, algorithm 1): the selection of a layer's entries, in the
// form in which they travel, and the sum of the entries of all ranks. chunks.hpp has the kernels of whole chunks.
//
// Gradients are float16, bfloat16 or float32, and computed in float32; residuals and velocities are float32. Pointers
// need only the alignment of their elements; different pointers of one call do not overlap. Counts may be 0. All
// results have the same bits at every SIMD level and on every device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "../base/dtype.hpp"
#include "simd.hpp"

namespace gradientflow::compute {

// Formats of the indices of entries. `words`: 32 bits each. `offsets`: 16 bits each, within pages of 65,536 elements,
// followed by the number of entries of each page (32 bits). `bitmap`: a bit for each element of the layer.
enum class IndexFormat : std::uint8_t { words, offsets, bitmap };

// Layout of a block: up to `k` entries of a layer of `count` elements. It depends only on `count`, `k` and the dtype of
// the values, so all ranks have the same layout, and a message need not contain sizes. A block holds the number of its
// entries (32 bits), then their indices, ascending, then values of float32, float16 or bfloat16. Parts begin at
// multiples of 4 bytes; unused bytes are zero, so that blocks of equal entries have equal bytes.
struct EntryBlock {
  std::size_t count;
  std::size_t k;
  DType values;
  IndexFormat indices;
  std::size_t index_begin;  // bytes from the beginning of the block
  std::size_t value_begin;
  std::size_t bytes;
};

// Returns the layout with the smallest of the three index formats; of formats with equal size, the first. Throws
// Error(value) unless `k` is at most `count`, and `count` is below 2^32; Error(type) for other dtypes.
[[nodiscard]] EntryBlock block_of(std::size_t count, std::size_t k, DType values);

// x = gradient * scale + residual, or with a velocity v: v' = momentum * v + gradient * scale, x = v' + residual. The
// selected entries of x are written to the block, clamped to magnitudes up to `limit` (float16: at most 65504) and
// rounded to the block's dtype. The rest remains: next_residual = x - sent, in float32. next_velocity = v', but 0 where
// entries were sent if `masking` (DGC, factor masking). The gradient is zeroed if `clear`. residual and velocity are
// not written, so that an iteration can be rolled back.
struct Select {
  enum class How : std::uint8_t {
    exact,    // the k entries of largest magnitude; of equal entries, the lower indices
    sampled,  // entries above a threshold estimated from a random sample (double sampling): k or fewer, see below
    random,   // k entries drawn by `seed` alone (Robert Floyd's algorithm; each set of k is equally likely): ranks with
              // the same seed draw the same entries
  };
  void* gradient;
  DType dtype;
  float scale = 1.0F;
  const float* residual;  // nullptr: zeros
  float* next_residual;
  const float* velocity = nullptr;  // nullptr: zeros
  float* next_velocity = nullptr;   // nullptr: there is none
  float momentum = 0.0F;
  bool masking = true;
  bool clear = true;  // the gradient is zeroed
  How how = How::sampled;
  std::uint64_t seed = 0;                                // seed of the sample, or of the entries drawn
  float limit = std::numeric_limits<float>::infinity();  // largest magnitude to send; above 0
  float threshold = 0.0F;  // sampled: an earlier estimate, used in place of a sample unless it is 0
  EntryBlock block;
  std::byte* data;  // memory, block.bytes long
};

// Result of a selection.
//
// `sampled`: the layer is cut into parts, and the sample has one random element of each part. Its size is chosen so
// that it should contain 64 of the k largest elements (at a ratio of 1000 it has 64,000 elements). The sample gives a
// threshold that somewhat more than k elements should reach; the pass that computes x finds these elements. If more
// than k elements reach the threshold, the k largest of them are sent. If fewer than 0.8 k elements reach it, the k
// largest of the layer are sent, which takes another pass over x. If k is below 4,096 (then a threshold that rises
// during the pass is as good), or above an eighth of the layer, entries are selected exactly, without a sample.
//
// Elements that are 0, or would travel as 0, are never sent, even if fewer than k elements remain. Only `random` also
// draws such elements.
struct Selected {
  std::size_t sent;       // entries sent
  float threshold;        // least magnitude that was sent, for a later call; 0 if none was sent, or for `random`
  std::size_t nonfinite;  // elements of x that are infinite or NaN; above 0 the block is empty, and next_residual and
                          // next_velocity are not meaningful
};
// Selects entries. Throws Error(value) if the given threshold is negative or not finite.
Selected select(const Select& call);

// gradient[i] = scale * (sum of the entries i of all blocks, in their order, in float32), rounded once, if a block has
// an entry i; other elements stay as they are. Throws Error(value), before anything is written, if a block is invalid:
// an index beyond the layer, more entries than k, or indices that do not ascend.
struct Combine {
  void* gradient;
  DType dtype;
  float scale = 1.0F;
  EntryBlock block;
  std::span<const std::byte* const> blocks;  // a block of each rank
};
// Returns the number of elements written: the size of the union.
std::size_t combine(const Combine& call);

// Run at a given level, for tests. Throw Error(value) if `level` cannot run here.
Selected select_at(SimdLevel level, const Select& call);
std::size_t combine_at(SimdLevel level, const Combine& call);

}  // namespace gradientflow::compute

// Layout of the chunks of a pool among its tensors.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "../../base/dtype.hpp"
#include "../update/update.hpp"

namespace gradientflow::engine {

class ChunkLayout {
 public:
  using Span = Update::Span;

  // Returns the offsets of tensors as in a GradientPool, without the padding after the last tensor, which would count
  // as part of a chunk, or as a chunk.
  [[nodiscard]] static std::vector<std::size_t> offsets_of(const std::vector<std::size_t>& counts, DType dtype);

  // `offsets`: the result of offsets_of(), in elements. `chunk_size`: elements of a chunk; a chunk has at most all
  // elements.
  ChunkLayout(std::vector<std::size_t> offsets, std::size_t chunk_size);

  [[nodiscard]] std::size_t chunks() const { return (offsets_.back() + chunk_size_ - 1) / chunk_size_; }
  [[nodiscard]] std::size_t chunk_size() const { return chunk_size_; }

  [[nodiscard]] Span span_of(std::size_t chunk) const;
  [[nodiscard]] std::vector<std::size_t> begins() const;  // start of each chunk; then the end of the last
  // Returns the first and the last tensor that have elements in a chunk; its padding belongs to the tensor before it.
  [[nodiscard]] std::pair<std::size_t, std::size_t> tensors_of(std::size_t chunk) const;
  // Returns the chunks that a tensor overlaps.
  [[nodiscard]] Span chunks_of(std::size_t tensor) const;
  // Returns, for each chunk, the number of tensors that overlap it.
  [[nodiscard]] std::vector<std::size_t> tensors_by_chunk() const;

  // Returns the elements of chunks in ascending order, neighbors joined.
  [[nodiscard]] std::vector<Span> spans_of(const std::vector<std::size_t>& chunks) const;

 private:
  std::vector<std::size_t> offsets_;  // offsets by tensor, in elements
  std::size_t chunk_size_;
};

}  // namespace gradientflow::engine

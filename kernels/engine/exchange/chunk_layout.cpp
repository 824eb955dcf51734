#include "chunk_layout.hpp"

#include <algorithm>

#include "../memory/layout.hpp"

namespace gradientflow::engine {

std::vector<std::size_t> ChunkLayout::offsets_of(const std::vector<std::size_t>& counts, DType dtype) {
  std::vector<std::size_t> offsets = lay_out(counts, dtype);
  std::size_t end = 0;
  for (std::size_t tensor = 0; tensor < counts.size(); ++tensor) {
    end = counts[tensor] > 0 ? offsets[tensor] + counts[tensor] * size_of(dtype) : end;
  }
  for (std::size_t& offset : offsets) {
    offset = std::min(offset, end);  // tensors without elements may follow
  }
  return offsets;
}

ChunkLayout::ChunkLayout(std::vector<std::size_t> offsets, std::size_t chunk_size)
    : offsets_(std::move(offsets)), chunk_size_(std::max(std::size_t{1}, std::min(chunk_size, offsets_.back()))) {}

ChunkLayout::Span ChunkLayout::span_of(std::size_t chunk) const {
  return {chunk * chunk_size_, std::min((chunk + 1) * chunk_size_, offsets_.back())};
}

std::vector<std::size_t> ChunkLayout::begins() const {
  std::vector<std::size_t> found;
  for (std::size_t chunk = 0; chunk < chunks(); ++chunk) {
    found.push_back(span_of(chunk).begin);
  }
  found.push_back(offsets_.back());
  return found;
}

std::pair<std::size_t, std::size_t> ChunkLayout::tensors_of(std::size_t chunk) const {
  const Span span = span_of(chunk);
  const auto tensor_at = [&](std::size_t element) {
    const auto after = std::upper_bound(offsets_.begin(), offsets_.end(), element);
    return static_cast<std::size_t>(after - offsets_.begin()) - 1;
  };
  return {tensor_at(span.begin), tensor_at(span.end - 1)};
}

ChunkLayout::Span ChunkLayout::chunks_of(std::size_t tensor) const {
  const std::size_t begin = offsets_[tensor];
  const std::size_t end = offsets_[tensor + 1];
  return {begin / chunk_size_, end > begin ? (end - 1) / chunk_size_ + 1 : begin / chunk_size_};
}

std::vector<std::size_t> ChunkLayout::tensors_by_chunk() const {
  std::vector<std::size_t> found(chunks(), 0);
  for (std::size_t tensor = 0; tensor + 1 < offsets_.size(); ++tensor) {
    const Span reached = chunks_of(tensor);
    for (std::size_t chunk = reached.begin; chunk < reached.end; ++chunk) {
      ++found[chunk];
    }
  }
  return found;
}

std::vector<ChunkLayout::Span> ChunkLayout::spans_of(const std::vector<std::size_t>& chunks) const {
  std::vector<Span> found;
  for (const std::size_t chunk : chunks) {
    const Span span = span_of(chunk);
    if (!found.empty() && found.back().end == span.begin) {
      found.back().end = span.end;
    } else {
      found.push_back(span);
    }
  }
  return found;
}

}  // namespace gradientflow::engine

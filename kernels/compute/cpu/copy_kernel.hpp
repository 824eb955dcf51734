// Copies past the caches.
#pragma once

#include "vector.hpp"

namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE {
namespace {

// The head up to the destination's first cache line boundary and the tail are left to memcpy.
void copy_streaming(void* destination, const void* source, std::size_t bytes) {
  using Block = Vector<std::uint8_t>;
  constexpr std::size_t width = 4;
  auto* const to = static_cast<std::byte*>(destination);
  const auto* const from = static_cast<const std::byte*>(source);
  const std::size_t head = bytes_to_line(destination, bytes);
  std::memcpy(to, from, head);
  std::size_t offset = head;
  for (; bytes - offset >= width * vector_bytes; offset += width * vector_bytes) {
    Block block[width];
    for (std::size_t v = 0; v < width; ++v) {
      block[v] = load<Block>(from + offset + v * vector_bytes);
    }
    for (std::size_t v = 0; v < width; ++v) {
      store<true>(to + offset + v * vector_bytes, block[v]);
    }
  }
  streaming_fence();
  std::memcpy(to + offset, from + offset, bytes - offset);
}

}  // namespace
}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE

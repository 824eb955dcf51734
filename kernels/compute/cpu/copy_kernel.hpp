// Copies of memory in vectors, into the caches or past them.
//
// memcpy is not used: from 2 KiB on, glibc's memcpy uses `rep movsb`, even on processors where it is slow
// (rep_movsb.hpp).
#pragma once

#include "vector.hpp"

namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE {
namespace {

// Copies fewer than 2 * Bytes bytes: the first Bytes bytes and the last, which may overlap.
template <std::size_t Bytes>
[[gnu::always_inline]] inline void copy_short(std::byte* to, const std::byte* from, std::size_t bytes) {
  using Block = Vector<std::uint8_t, Bytes>;
  if (bytes >= Bytes) {
    const Block first = load<Block>(from);
    const Block last = load<Block>(from + bytes - Bytes);
    store<false>(to, first);
    store<false>(to + bytes - Bytes, last);
  } else if constexpr (Bytes > 1) {
    copy_short<Bytes / 2>(to, from, bytes);
  }
}

// Writes the first and the last vector at any address. The vectors between them, at multiples of a vector's size, may
// overlap with both.
template <bool streaming>
void copy(void* destination, const void* source, std::size_t bytes) {
  using Block = Vector<std::uint8_t>;
  constexpr std::size_t width = 4;
  auto* const to = static_cast<std::byte*>(destination);
  const auto* const from = static_cast<const std::byte*>(source);
  if (bytes < 2 * vector_bytes) {
    copy_short<vector_bytes>(to, from, bytes);
    return;
  }
  store<false>(to, load<Block>(from));
  std::size_t offset = vector_bytes - reinterpret_cast<std::uintptr_t>(to) % vector_bytes;
  for (; bytes - offset >= width * vector_bytes; offset += width * vector_bytes) {
    Block block[width];
    for (std::size_t v = 0; v < width; ++v) {
      block[v] = load<Block>(from + offset + v * vector_bytes);
    }
    for (std::size_t v = 0; v < width; ++v) {
      store<streaming>(to + offset + v * vector_bytes, block[v]);
    }
  }
  for (; bytes - offset >= vector_bytes; offset += vector_bytes) {
    store<streaming>(to + offset, load<Block>(from + offset));
  }
  if constexpr (streaming) {
    streaming_fence();
  }
  store<false>(to + bytes - vector_bytes, load<Block>(from + bytes - vector_bytes));
}

}  // namespace
}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE

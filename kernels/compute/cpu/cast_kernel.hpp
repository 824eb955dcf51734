// Casts between the 16-bit floats and float32, with a scale.
#pragma once

#include "element.hpp"

namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE {
namespace {

// Casts whole blocks of `width` vectors of float32 from element `begin` on, up to `end`. Returns the first element
// left.
template <class To, class From, std::size_t width>
inline std::size_t cast_blocks(std::byte* destination, const std::byte* source, std::size_t begin, std::size_t end,
                               float scale) {
  std::size_t i = begin;
  for (; end - i >= width * lanes; i += width * lanes) {
    Floats values[width];
    for (std::size_t v = 0; v < width; ++v) {
      values[v] = canonical_nan(From::load_ordered(source + (i + v * lanes) * From::size) * scale);
    }
    for (std::size_t v = 0; v < width; ++v) {
      To::store_ordered(destination + (i + v * lanes) * To::size, values[v]);
    }
  }
  return i;
}

// Casts blocks of four vectors, single vectors, then the rest, fewer elements than a vector, through padded copies.
template <class To, class From>
void cast(void* destination, const void* source, std::size_t count, float scale) {
  auto* const to = static_cast<std::byte*>(destination);
  const auto* const from = static_cast<const std::byte*>(source);
  std::size_t i = cast_blocks<To, From, 4>(to, from, 0, count, scale);
  i = cast_blocks<To, From, 1>(to, from, i, count, scale);
  if (i < count) {
    std::byte padded_from[lanes * From::size] = {};
    std::byte padded_to[lanes * To::size];
    std::memcpy(padded_from, from + i * From::size, (count - i) * From::size);
    cast_blocks<To, From, 1>(padded_to, padded_from, 0, lanes, scale);
    std::memcpy(to + i * To::size, padded_to, (count - i) * To::size);
  }
}

}  // namespace
}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE

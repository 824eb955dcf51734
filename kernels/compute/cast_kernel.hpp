// Casts between the 16-bit floats and float32, scaled on the way.
#pragma once

#include "element.hpp"

namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE {
namespace {

template <class To, class From, std::size_t width>
inline std::size_t cast_blocks(std::byte* destination, const std::byte* source, std::size_t begin, std::size_t end,
                               float scale) {
  constexpr std::size_t block = width * From::lanes;
  std::size_t i = begin;
  for (; end - i >= block; i += block) {
    Floats values[width];
    for (std::size_t v = 0; v < width; ++v) {
      values[v] = From::load(source + i * From::size + v * From::bytes) * scale;
    }
    for (std::size_t v = 0; v < width; ++v) {
      To::template store<false>(destination + i * To::size + v * To::bytes, values[v]);
    }
  }
  return i;
}

// Blocks of four vectors, single vectors, then the rest, fewer elements than a vector, through padded copies.
template <class To, class From>
void cast(void* destination, const void* source, std::size_t count, float scale) {
  auto* const to = static_cast<std::byte*>(destination);
  const auto* const from = static_cast<const std::byte*>(source);
  std::size_t i = cast_blocks<To, From, 4>(to, from, 0, count, scale);
  i = cast_blocks<To, From, 1>(to, from, i, count, scale);
  if (i < count) {
    std::byte padded_from[From::bytes] = {};
    std::byte padded_to[To::bytes];
    std::memcpy(padded_from, from + i * From::size, (count - i) * From::size);
    To::template store<false>(padded_to, From::load(padded_from) * scale);
    std::memcpy(to + i * To::size, padded_to, (count - i) * To::size);
  }
}

}  // namespace
}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE

// Count of infinite and NaN values: all bits of their exponent are set.
#pragma once

#include "element.hpp"

namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE {
namespace {

// Bits is an unsigned integer of the values' size.
template <class Bits, Bits exponent>
std::size_t count_nonfinite(const void* source, std::size_t count) {
  constexpr std::size_t width = vector_bytes / sizeof(Bits);
  constexpr std::size_t block = static_cast<Bits>(-1) / 4;  // rounds whose counts, at most four each, fit into a lane
  const auto* const from = static_cast<const std::byte*>(source);
  const auto is_nonfinite = [&](std::size_t i) {
    const auto bits = load<Vector<Bits>>(from + i * sizeof(Bits));
    return reinterpret_cast<Vector<Bits>>((bits & exponent) == exponent);  // -1 in lanes of nonfinite values
  };
  std::size_t found = 0;
  std::size_t i = 0;
  while (count - i >= width) {
    Vector<Bits> sums[4] = {};
    std::size_t rounds = 0;
    for (; rounds < block && count - i >= 4 * width; ++rounds, i += 4 * width) {
      for (std::size_t v = 0; v < 4; ++v) {
        sums[v] -= is_nonfinite(i + v * width);
      }
    }
    for (; rounds < block && count - i >= width; ++rounds, i += width) {
      sums[0] -= is_nonfinite(i);
    }
    const Vector<Bits> sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    for (std::size_t lane = 0; lane < width; ++lane) {
      found += sum[lane];
    }
  }
  for (; i < count; ++i) {
    Bits bits = 0;
    std::memcpy(&bits, from + i * sizeof(Bits), sizeof bits);
    found += (bits & exponent) == exponent ? 1 : 0;
  }
  return found;
}

}  // namespace
}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE

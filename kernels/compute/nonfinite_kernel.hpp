// Counts the float32 values that are infinite or NaN: those with all bits of the exponent set.
#pragma once

#include "element.hpp"

namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE {
namespace {

inline std::size_t count_nonfinite(const void* source, std::size_t count) {
  constexpr std::size_t width = sizeof(Words) / sizeof(std::uint32_t);
  constexpr std::size_t block = std::size_t{1} << 20;  // vectors whose sums fit into a lane
  constexpr std::uint32_t exponent = 0x7f800000u;
  const auto* const from = static_cast<const std::byte*>(source);
  std::size_t found = 0;
  std::size_t i = 0;
  while (count - i >= width) {
    Words sum = {};
    for (std::size_t v = 0; v < block && count - i >= width; ++v, i += width) {
      const Words bits = load<Words>(from + i * sizeof(float));
      sum -= static_cast<Words>((bits & exponent) == exponent);  // a lane that holds is -1
    }
    for (std::size_t lane = 0; lane < width; ++lane) {
      found += sum[lane];
    }
  }
  for (; i < count; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, from + i * sizeof(float), sizeof bits);
    found += (bits & exponent) == exponent ? 1 : 0;
  }
  return found;
}

}  // namespace
}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE

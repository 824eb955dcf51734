// Rules shared by the kernels of top_k.hpp on the CPU and on devices.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../base/dtype.hpp"
#include "everywhere.hpp"

namespace gradientflow::compute {

inline constexpr std::size_t index_page = 65536;            // elements whose indices have the same upper half
inline constexpr std::uint32_t infinity_bits = 0x7f800000;  // magnitude: the bits of a float32 without its sign
inline constexpr float largest_float16 = 65504.0F;

GRADIENTFLOW_EVERYWHERE inline std::size_t padded(std::size_t bytes) { return (bytes + 3) / 4 * 4; }
GRADIENTFLOW_EVERYWHERE inline std::size_t index_pages(std::size_t count) {
  return (count + index_page - 1) / index_page;
}
GRADIENTFLOW_EVERYWHERE inline std::size_t bitmap_words(std::size_t count) { return (count + 31) / 32; }

// Returns the least magnitude that does not travel as 0.
inline std::uint32_t smallest_sent(DType values) {
  switch (values) {
    case DType::float16:
      return 0x33000001;  // above 2^-25
    case DType::bfloat16:
      return 0x00008001;  // above 2^-134
    default:
      return 1;
  }
}

// Returns the largest magnitude that is sent.
GRADIENTFLOW_EVERYWHERE inline float largest_sent(DType values, float limit) {
  return values == DType::float16 && limit > largest_float16 ? largest_float16 : limit;
}

// Returns a random number for each seed and counter (SplitMix64).
GRADIENTFLOW_EVERYWHERE inline std::uint64_t random_at(std::uint64_t seed, std::uint64_t counter) {
  std::uint64_t z = seed + (counter + 1) * 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

// Returns a random number below `limit`, which is at most 2^32, from the upper half of the bits.
GRADIENTFLOW_EVERYWHERE inline std::uint64_t random_below(std::uint64_t limit, std::uint64_t seed,
                                                          std::uint64_t counter) {
  return ((random_at(seed, counter) >> 32) * limit) >> 32;
}

// Tells if k is so large a part of a layer that the selection is exact.
inline bool is_large_part(std::size_t count, std::size_t k) { return k > count / 8; }

// Returns the size of a sample: `sample_hits` of its elements, enough for an estimate, are expected to be among the k
// largest. 0: no sample, because it would be too large a part of the layer.
inline constexpr std::size_t sample_hits = 64;
inline std::size_t sample_of(std::size_t count, std::size_t k) {
  const std::size_t size = sample_hits * count / k;
  return size > count / 64 ? 0 : size;
}

// Returns the rank of the threshold in a sample: the expected number of hits, and `deviations` standard deviations
// more.
inline std::size_t sample_rank(std::size_t deviations) { return sample_hits + deviations * 8 + 1; }

// Returns the position of element i of a sample: a random position in part i of the layer, which is cut into `sample`
// parts.
GRADIENTFLOW_EVERYWHERE inline std::size_t sample_place(std::size_t i, std::size_t sample, std::size_t count,
                                                        std::uint64_t seed) {
  const std::uint64_t from = i * count / sample;
  const std::uint64_t to = (i + 1) * count / sample;
  return from + random_below(to - from, seed, i);
}

}  // namespace gradientflow::compute

// Access to the bytes of a block of entries, and indices of element types in the tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../../base/dtype.hpp"

namespace gradientflow::compute {

inline std::uint32_t word_at(const std::byte* address) {
  std::uint32_t word = 0;
  std::memcpy(&word, address, sizeof word);
  return word;
}
inline void put_word(std::byte* address, std::uint32_t word) { std::memcpy(address, &word, sizeof word); }

inline std::uint16_t half_at(const std::byte* address) {
  std::uint16_t half = 0;
  std::memcpy(&half, address, sizeof half);
  return half;
}

inline std::size_t float_index(DType dtype) {
  return index_among_floats(dtype,
                            "the gradients and entries of sparse communication are float16, bfloat16 or float32");
}

}  // namespace gradientflow::compute

// Sums over the elements of a chunk, added up as chunks.hpp says: the same at every SIMD level.
//
// A pass processes a chunk row by row, norm_lanes elements each. Its at(i) processes the vector that begins at element
// i, and returns the terms to add up. Its rest(i, count, sums) processes the last elements, fewer than a row, in padded
// copies. canonicalize_nans(begin, end) is called only after a block whose sum is not finite: a search for NaN in each
// vector would take a third of the time on a chunk in the caches.
#pragma once

#include "../chunks.hpp"
#include "element.hpp"

namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE {
namespace {

constexpr std::size_t row_vectors = norm_lanes / lanes;
using Sums = Floats[row_vectors];

// Memory for a row of elements of `size` bytes; unused elements are 0. Loading from nullptr and saving to it do
// nothing.
template <std::size_t size>
struct PaddedRow {
  std::byte bytes[norm_lanes * size] = {};

  PaddedRow() = default;
  PaddedRow(const std::byte* from, std::size_t i, std::size_t count) {
    if (from != nullptr) {
      std::memcpy(bytes, from + i * size, count * size);
    }
  }
  void save(std::byte* to, std::size_t i, std::size_t count) const {
    if (to != nullptr) {
      std::memcpy(to + i * size, bytes, count * size);
    }
  }
};

[[gnu::always_inline]] inline Floats magnitude(Floats values) { return floats_of(words_of(values) & 0x7fffffffu); }

// Adds the upper half of a vector to the lower half, and so on.
template <class V>
[[gnu::always_inline]] inline float fold(V vector) {
  if constexpr (sizeof(V) == 2 * sizeof(float)) {
    return vector[0] + vector[1];
  } else {
    Vector<float, sizeof(V) / 2> halves[2];
    std::memcpy(halves, &vector, sizeof(V));
    return fold(halves[0] + halves[1]);
  }
}

[[gnu::always_inline]] inline float fold_lanes(Sums& sums) {
  for (std::size_t half = row_vectors / 2; half > 0; half /= 2) {
    for (std::size_t v = 0; v < half; ++v) {
      sums[v] += sums[v + half];
    }
  }
  return fold(sums[0]);
}

template <class Pass>
[[gnu::always_inline]] inline void add_row(const Pass& pass, std::size_t i, Sums& sums) {
  for (std::size_t v = 0; v < row_vectors; ++v) {
    sums[v] += pass.at(i + v * lanes);
  }
}

template <class Pass>
[[gnu::always_inline]] inline void add_block(const Pass& pass, std::size_t begin, std::size_t end, Sums& sums) {
  std::size_t i = begin;
  for (; end - i >= norm_lanes; i += norm_lanes) {
    add_row(pass, i, sums);
  }
  if (i < end) {
    pass.rest(i, end - i, sums);
  }
}

// Adds up a chunk. The compiler keeps the copy of the pass in registers: no store can change it.
template <class Pass>
[[gnu::always_inline]] inline double add_up(const Pass pass, std::size_t count) {
  double total = 0;
  for (std::size_t begin = 0; begin < count; begin += norm_block) {
    const std::size_t end = count - begin < norm_block ? count : begin + norm_block;
    Sums sums = {};
    add_block(pass, begin, end, sums);
    const float sum = fold_lanes(sums);
    if (!__builtin_isfinite(sum)) {
      pass.canonicalize_nans(begin, end);
    }
    total += static_cast<double>(sum);
  }
  return total;
}

template <class Element>
struct SquaresPass {
  const std::byte* source;
  float scale;

  [[gnu::always_inline]] Floats at(std::size_t i) const {
    const Floats x = Element::load_ordered(source + i * Element::size) * scale;
    return x * x;
  }
  [[gnu::always_inline]] void rest(std::size_t i, std::size_t count, Sums& sums) const {
    const PaddedRow<Element::size> row(source, i, count);
    add_row(SquaresPass{row.bytes, scale}, 0, sums);
  }
  void canonicalize_nans(std::size_t /*begin*/, std::size_t /*end*/) const {}
};

template <class Element>
double sum_of_squares(const void* source, std::size_t count, float scale) {
  return add_up(SquaresPass<Element>{static_cast<const std::byte*>(source), scale}, count);
}

}  // namespace
}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE

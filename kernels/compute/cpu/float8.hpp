// Elements of float8_e4m3 (sign, 4 bits of exponent, 3 of fraction; Micikevicius et al., FP8 Formats for Deep Learning,
// 2022, section 3) to float32 and back, on whole vectors, the same bits at every SIMD level.
//
// Rounding is to nearest, ties to even; values above 448 become 448. The format has no infinity: infinity and NaN
// become its NaN without sign, which becomes the quiet NaN of float32.
#pragma once

#include "half.hpp"

namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE {
namespace {

using Bytes = Vector<std::uint8_t, vector_bytes / 4>;  // the same number of elements as Floats

// Widen each byte to a word, and narrow each word, whose upper bytes are 0, to its lowest byte, in order.
#if defined(__AVX512F__)
[[gnu::always_inline]] inline Words widen(Bytes bytes) {
  return reinterpret_cast<Words>(_mm512_maskz_cvtepu8_epi32(0xffff, reinterpret_cast<__m128i>(bytes)));
}
[[gnu::always_inline]] inline Bytes narrow_to_bytes(Words words) {
  return reinterpret_cast<Bytes>(_mm512_maskz_cvtepi32_epi8(0xffff, reinterpret_cast<__m512i>(words)));
}
#else
[[gnu::always_inline]] inline Words widen(Bytes bytes) { return __builtin_convertvector(bytes, Words); }
[[gnu::always_inline]] inline Bytes narrow_to_bytes(Words words) { return __builtin_convertvector(words, Bytes); }
#endif

struct Float8 {
  static constexpr std::size_t size = 1;

  // Shifted left by 20, exponent and fraction lie as in a float32, with an exponent that is too small by
  // 120 (the biases are 7 and 127). A subnormal is corrected as in Float16Format.
  [[gnu::always_inline]] static Floats load_ordered(const std::byte* address) {
    constexpr std::int32_t smallest_normal = 0x08 << 20;
    const Words words = widen(load<Bytes>(address));
    const Words sign = (words & 0x80u) << 24;
    const Words magnitude = (words & 0x7fu) << 20;
    const Words nan = reinterpret_cast<Words>(is_above(magnitude, 0x7e << 20)) & 0x7fc00000u;
    const Words normal = (magnitude + (120u << 23)) | nan;
    const Words smallest = Words{} + (121u << 23);
    const Words subnormal = words_of(floats_of(magnitude + smallest) - floats_of(smallest));
    return floats_of((is_above(magnitude, smallest_normal - 1) ? normal : subnormal) | sign);
  }

  // Rebias and round by adding, as in Float16Format. For a subnormal result the processor rounds when 2^14 is added:
  // the last bit of 2^14 in float32 is worth 2^-9, like the last bit of a subnormal float8_e4m3.
  [[gnu::always_inline]] static void store_ordered(std::byte* address, Floats values) {
    constexpr std::int32_t smallest_normal = 121 << 23;  // 2^-6
    constexpr std::int32_t largest = 0x43e00000;         // 448
    const Words bits = words_of(values);
    const Words magnitude = bits & 0x7fffffffu;
    const Words normal = (magnitude - (120u << 23) + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
    const Words unit = Words{} + (141u << 23);
    const Words subnormal = words_of(floats_of(magnitude) + floats_of(unit)) - unit;
    const Words small = is_above(magnitude, smallest_normal - 1) ? normal : subnormal;
    const Words finite = (is_above(magnitude, largest) ? Words{} + 0x7eu : small) | ((bits >> 24) & 0x80u);
    store<false>(address, narrow_to_bytes(is_above(magnitude, 0x7f7fffff) ? Words{} + 0x7fu : finite));
  }
};

// Returns the largest magnitude among the finite values; 0 if no value is finite.
inline float largest_finite(const void* source, std::size_t count) {
  const auto* const from = static_cast<const std::byte*>(source);
  Signed most[4] = {};
  std::size_t i = 0;
  const auto take = [&](Signed& best, std::size_t at) {
    const auto magnitude = reinterpret_cast<Signed>(load<Words>(from + at * sizeof(float)) & 0x7fffffffu);
    best = magnitude > best && magnitude < 0x7f800000 ? magnitude : best;
  };
  for (; count - i >= 4 * lanes; i += 4 * lanes) {
    for (std::size_t v = 0; v < 4; ++v) {
      take(most[v], i + v * lanes);
    }
  }
  for (; count - i >= lanes; i += lanes) {
    take(most[0], i);
  }
  std::int32_t largest = 0;
  for (const Signed& each : most) {
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      largest = each[lane] > largest ? each[lane] : largest;
    }
  }
  for (; i < count; ++i) {
    std::int32_t bits = 0;
    std::memcpy(&bits, from + i * sizeof(float), sizeof bits);
    bits &= 0x7fffffff;
    largest = bits < 0x7f800000 && bits > largest ? bits : largest;
  }
  float found = 0;
  std::memcpy(&found, &largest, sizeof found);
  return found;
}

}  // namespace
}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE

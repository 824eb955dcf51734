// Conversion of float16 and bfloat16 to float32 and back, on whole vectors, with the same bits at every SIMD level.
//
// Rounding is to nearest, ties to even; subnormals and infinities are kept; too large values become infinity. A NaN
// becomes a NaN: to_float keeps its sign and payload. from_float accepts only a NaN of to_float or canonical_nan,
// through which results of arithmetic pass first.
#pragma once

#include "vector.hpp"

namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE {
namespace {

using Floats = Vector<float>;
using Words = Vector<std::uint32_t>;
using Signed = Vector<std::int32_t>;  // words below 2^31, to compare: not every processor compares unsigned words
using Halves = Vector<std::uint16_t, vector_bytes / 2>;  // the same number of elements as Floats

constexpr std::size_t lanes = sizeof(Floats) / sizeof(float);

[[gnu::always_inline]] inline Words words_of(Floats floats) { return reinterpret_cast<Words>(floats); }
[[gnu::always_inline]] inline Floats floats_of(Words words) { return reinterpret_cast<Floats>(words); }
[[gnu::always_inline]] inline Signed is_above(Words words, std::int32_t limit) {
  return reinterpret_cast<Signed>(words) > limit;
}

// Returns the value, or the quiet NaN without sign or payload for any NaN, so that results have the same bits
// everywhere. An addition or multiplication of two NaN operands keeps the first, but the compiler is free to swap the
// operands, and processors differ in the NaN of inf - inf.
template <class V>
[[gnu::always_inline]] inline V canonical_nan(V value) {
  return (value != value) ? V{} + __builtin_nanf("") : value;
}

// Widen each half to a word, and narrow each word, whose upper half is 0, in order. Intrinsics, because GCC does not
// compile __builtin_convertvector to the processor's instructions.
#if defined(__AVX512F__)
[[gnu::always_inline]] inline Words widen(Halves halves) {
  return reinterpret_cast<Words>(_mm512_maskz_cvtepu16_epi32(0xffff, reinterpret_cast<__m256i>(halves)));
}
[[gnu::always_inline]] inline Halves narrow(Words words) {
  return reinterpret_cast<Halves>(_mm512_maskz_cvtepi32_epi16(0xffff, reinterpret_cast<__m512i>(words)));
}
#elif defined(__AVX2__)
[[gnu::always_inline]] inline Words widen(Halves halves) {
  return reinterpret_cast<Words>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(halves)));
}
[[gnu::always_inline]] inline Halves narrow(Words words) {
  const auto wide = reinterpret_cast<__m256i>(words);
  return reinterpret_cast<Halves>(_mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1)));
}
#else
[[gnu::always_inline]] inline Words widen(Halves halves) { return __builtin_convertvector(halves, Words); }
[[gnu::always_inline]] inline Halves narrow(Words words) { return __builtin_convertvector(words, Halves); }
#endif

// Formats convert words whose lower half is a 16-bit float and whose upper half is 0.
struct BFloat16Format {
  [[gnu::always_inline]] static Floats to_float(Words words) { return floats_of(words << 16); }

  // Adding 0x7fff, or 0x8000 where the last kept bit is odd, carries into the upper half exactly where rounding goes
  // up. (A NaN as described above has no lower half that could carry.)
  [[gnu::always_inline]] static Words from_float(Floats floats) {
    const Words bits = words_of(floats);
    return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  }
};

struct Float16Format {
  // Shifted left by 13, the exponent and fraction of a float16 lie in the place of a float32's, with an exponent that
  // is too small by 112 (the biases are 15 and 127). Two cases need more. Infinity and NaN, whose exponent must become
  // the largest, take another 112. A subnormal gets the exponent of the smallest normal number, as if it had a leading
  // 1; subtracting that number, which is exact, removes the 1. A NaN becomes quiet, as in the processor's own
  // conversion.
  [[gnu::always_inline]] static Floats to_float(Words words) {
    constexpr std::int32_t infinity = 0x7c00 << 13;
    constexpr std::int32_t smallest_normal = 0x0400 << 13;
    const Words sign = (words & 0x8000u) << 16;
    const Words magnitude = (words & 0x7fffu) << 13;
    const Words special = reinterpret_cast<Words>(is_above(magnitude, infinity - 1)) & (112u << 23);
    const Words quiet = reinterpret_cast<Words>(is_above(magnitude, infinity)) & 0x400000u;
    const Words normal = (magnitude + (112u << 23) + special) | quiet;
    const Words smallest = Words{} + (113u << 23);
    const Words subnormal = words_of(floats_of(magnitude + smallest) - floats_of(smallest));
    return floats_of((is_above(magnitude, smallest_normal - 1) ? normal : subnormal) | sign);
  }

  // A normal result is rebiased, then rounded by adding as in bfloat16; a carry out of the fraction raises the
  // exponent, up to infinity, as it should. For a subnormal result the processor rounds when 0.5 is added, whose last
  // bit is worth as much as a subnormal float16's; the sum's fraction is the result.
  [[gnu::always_inline]] static Words from_float(Floats floats) {
    constexpr std::int32_t smallest_normal = 113 << 23;  // 2^-14
    constexpr std::int32_t too_large = 143 << 23;        // 2^16
    const Words bits = words_of(floats);
    const Words sign = (bits >> 16) & 0x8000u;
    const Words magnitude = bits & 0x7fffffffu;
    const Words normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const Words half = Words{} + (126u << 23);
    const Words subnormal = words_of(floats_of(magnitude) + floats_of(half)) - half;
    const Words finite = is_above(magnitude, smallest_normal - 1) ? normal : subnormal;
    const Words special = is_above(magnitude, 0x7f800000) ? (magnitude >> 13) & 0x7fffu : Words{} + 0x7c00u;
    return (is_above(magnitude, too_large - 1) ? special : finite) | sign;
  }
};

#if defined(__F16C__) && (defined(__AVX512F__) || defined(__AVX2__))
#define GRADIENTFLOW_HAS_F16C 1

// The processor's own conversions, zero-masked with all lanes on, since GCC warns of an uninitialized value in the
// plain forms.
[[gnu::always_inline]] inline Floats float_from_float16(Halves halves) {
#if defined(__AVX512F__)
  return _mm512_maskz_cvtph_ps(0xffff, reinterpret_cast<__m256i>(halves));
#else
  return _mm256_cvtph_ps(reinterpret_cast<__m128i>(halves));
#endif
}

[[gnu::always_inline]] inline Halves float16_from_float(Floats floats) {
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
#if defined(__AVX512F__)
  return reinterpret_cast<Halves>(_mm512_maskz_cvtps_ph(0xffff, floats, nearest));
#else
  return reinterpret_cast<Halves>(_mm256_cvtps_ph(floats, nearest));
#endif
}

#endif

}  // namespace
}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE

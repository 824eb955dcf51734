// float16 and bfloat16 to float32 and back, on whole vectors, the same bits at every SIMD level.
//
// Rounding is to nearest, ties to even; subnormals and infinities are kept; what is too large becomes infinity. A NaN
// keeps its sign and the upper bits of its payload and comes out quiet, as the processor's own conversion does it.
#pragma once

#include "vector.hpp"

namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE {
namespace {

using Floats = Vector<float>;
using Words = Vector<std::uint32_t>;
using Halves = Vector<std::uint16_t, vector_bytes / 2>;  // as many as there are Floats

[[gnu::always_inline]] inline Words words_of(Floats floats) { return reinterpret_cast<Words>(floats); }
[[gnu::always_inline]] inline Floats floats_of(Words words) { return reinterpret_cast<Floats>(words); }

// All bits set where the comparison holds; a comparison itself yields signed lanes.
template <class Mask>
[[gnu::always_inline]] inline Words bits_of(Mask mask) {
  return reinterpret_cast<Words>(mask);
}

[[gnu::always_inline]] inline Words widen(Halves halves) { return __builtin_convertvector(halves, Words); }
[[gnu::always_inline]] inline Halves narrow(Words words) { return __builtin_convertvector(words, Halves); }

[[gnu::always_inline]] inline Floats float_from_bfloat16(Halves halves) { return floats_of(widen(halves) << 16); }

// Adding 0x7fff, or 0x8000 where the last kept bit is odd, carries into the upper half exactly where rounding goes up.
[[gnu::always_inline]] inline Halves bfloat16_from_float(Floats floats) {
  const Words bits = words_of(floats);
  const Words rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const Words nan = bits_of(floats != floats);
  return narrow((((bits | 0x400000u) & nan) | (rounded & ~nan)) >> 16);
}

#if defined(__F16C__) && defined(__AVX512F__)

// The zero-masked forms with all lanes on, since GCC warns of an uninitialised value within the plain ones.
[[gnu::always_inline]] inline Floats float_from_float16(Halves halves) {
  return _mm512_maskz_cvtph_ps(0xffff, reinterpret_cast<__m256i>(halves));
}

[[gnu::always_inline]] inline Halves float16_from_float(Floats floats) {
  return reinterpret_cast<Halves>(_mm512_maskz_cvtps_ph(0xffff, floats, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#elif defined(__F16C__) && defined(__AVX2__)

[[gnu::always_inline]] inline Floats float_from_float16(Halves halves) {
  return _mm256_cvtph_ps(reinterpret_cast<__m128i>(halves));
}

[[gnu::always_inline]] inline Halves float16_from_float(Floats floats) {
  return reinterpret_cast<Halves>(_mm256_cvtps_ph(floats, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#else

// Shifted left by 13, the exponent and fraction of a float16 lie where those of a float32 do, with an exponent that is
// too small by 112 (the biases are 15 and 127). Two cases need more: infinity and NaN, whose exponent must become the
// largest one, take another 112; and a subnormal, given the exponent of the smallest normal number as if it had the
// leading one it lacks, is put right by subtracting that number, which is exact.
[[gnu::always_inline]] inline Floats float_from_float16(Halves halves) {
  const Words wide = widen(halves);
  const Words sign = (wide & 0x8000u) << 16;
  const Words magnitude = (wide & 0x7fffu) << 13;
  const Words special = bits_of(magnitude >= (0x7c00u << 13));
  const Words nan = bits_of(magnitude > (0x7c00u << 13));
  const Words subnormal = bits_of(magnitude < (0x0400u << 13));
  const Words normal = magnitude + (112u << 23) + ((112u << 23) & special);
  const Words smallest = Words{} + (113u << 23);
  const Words restored = words_of(floats_of(magnitude + smallest) - floats_of(smallest));
  return floats_of((restored & subnormal) | (normal & ~subnormal) | (0x400000u & nan) | sign);
}

// A normal result: rebias, then round by adding as in bfloat16; a carry out of the fraction raises the exponent, up to
// infinity, as it should. A subnormal one: adding 0.5, whose last bit is worth as much as that of a subnormal float16,
// lets the processor round, and the sum's fraction is the result.
[[gnu::always_inline]] inline Halves float16_from_float(Floats floats) {
  const Words bits = words_of(floats);
  const Words sign = (bits >> 16) & 0x8000u;
  const Words magnitude = bits & 0x7fffffffu;
  const Words normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const Words half = Words{} + (126u << 23);
  const Words tiny = words_of(floats_of(magnitude) + floats_of(half)) - half;
  const Words nan = bits_of(magnitude > 0x7f800000u);
  const Words is_large = bits_of(magnitude >= (143u << 23));
  const Words is_tiny = bits_of(magnitude < (113u << 23));
  const Words large = 0x7c00u | (nan & (0x200u | ((magnitude >> 13) & 0x3ffu)));
  return narrow((large & is_large) | (tiny & is_tiny) | (normal & ~is_large & ~is_tiny) | sign);
}

#endif

}  // namespace
}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE

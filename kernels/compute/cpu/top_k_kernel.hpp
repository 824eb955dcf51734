// Passes over a layer in the selection of entries: see top_k.hpp.
#pragma once

#include "element.hpp"
#include "table.hpp"

namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE {
namespace {

constexpr std::size_t pass_width = 4;  // vectors that are tested together: hardly any has a candidate

// Returns a bit for each lane whose magnitude, as an integer, is `least` or more. Magnitudes are ordered like their
// bits.
[[gnu::always_inline]] inline unsigned lanes_of_at_least(Floats x, std::int32_t least) {
  const auto magnitude = reinterpret_cast<Signed>(words_of(x) & 0x7fffffffu);
#if defined(__AVX512F__)
  return _cvtmask16_u32(_mm512_cmpge_epi32_mask(reinterpret_cast<__m512i>(magnitude), _mm512_set1_epi32(least)));
#elif defined(__AVX2__)
  return static_cast<unsigned>(_mm256_movemask_ps(reinterpret_cast<__m256>(magnitude > least - 1)));
#elif defined(__x86_64__)
  return static_cast<unsigned>(_mm_movemask_ps(reinterpret_cast<__m128>(magnitude > least - 1)));
#else
  unsigned mask = 0;
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    mask |= (magnitude[lane] >= least ? 1u : 0u) << lane;
  }
  return mask;
#endif
}

[[gnu::always_inline]] inline void append(Candidates& found, Floats x, std::uint32_t first, unsigned mask) {
#if defined(__AVX512F__)
  const __m512i number = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i index = _mm512_add_epi32(number, _mm512_set1_epi32(static_cast<int>(first)));
  const auto some = static_cast<__mmask16>(mask);  // GCC 12 can leave more than 16 bits in a mask, with sanitizers
  _mm512_storeu_si512(found.indices + found.number, _mm512_maskz_compress_epi32(some, index));
  _mm512_storeu_ps(found.values + found.number, _mm512_maskz_compress_ps(some, x));
  found.number += static_cast<std::size_t>(__builtin_popcount(_cvtmask16_u32(some)));
#else
  float values[lanes];
  std::memcpy(values, &x, sizeof values);
  for (; mask != 0; mask &= mask - 1) {
    const auto lane = static_cast<std::uint32_t>(__builtin_ctz(mask));
    found.indices[found.number] = first + lane;
    found.values[found.number] = values[lane];
    ++found.number;
  }
#endif
}

// Appends the candidates in `width` vectors of x.
template <std::size_t width>
[[gnu::always_inline]] inline void find(const Floats (&x)[width], std::size_t first, std::int32_t least,
                                        Candidates& found) {
  unsigned masks[width];
  unsigned any = 0;
  for (std::size_t v = 0; v < width; ++v) {
    any |= masks[v] = lanes_of_at_least(x[v], least);
  }
  if (__builtin_expect(any != 0, 0)) {
    for (std::size_t v = 0; v < width; ++v) {
      append(found, x[v], static_cast<std::uint32_t>(first + v * lanes), masks[v]);
    }
  }
}

// Corrects whole blocks of `width` vectors from element `begin` on, up to call.count. Returns the first element left.
template <class Element, bool has_velocity, bool streaming, std::size_t width>
[[gnu::always_inline]] inline std::size_t correct_blocks(const CorrectCall& call, std::size_t begin,
                                                         Candidates& found) {
  auto* const gradient = static_cast<std::byte*>(call.gradient);
  const auto* const residual = reinterpret_cast<const std::byte*>(call.residual);
  auto* const next_residual = reinterpret_cast<std::byte*>(call.next_residual);
  const auto* const velocity = reinterpret_cast<const std::byte*>(call.velocity);
  auto* const next_velocity = reinterpret_cast<std::byte*>(call.next_velocity);
  std::size_t i = begin;
  for (; call.count - i >= width * lanes; i += width * lanes) {
    Floats x[width];
    for (std::size_t v = 0; v < width; ++v) {
      const std::size_t at = i + v * lanes;
      Floats fresh = Element::load_ordered(gradient + at * Element::size) * call.scale;
      if constexpr (has_velocity) {
        fresh = load<Floats>(velocity + at * sizeof(float)) * call.momentum + fresh;
        store<streaming>(next_velocity + at * sizeof(float), fresh);
      }
      x[v] = fresh + load<Floats>(residual + at * sizeof(float));
      store<streaming>(next_residual + at * sizeof(float), x[v]);
    }
    if (call.clear) {
      for (std::size_t v = 0; v < width; ++v) {
        store<false>(gradient + (i + v * lanes) * Element::size, Vector<std::uint8_t, lanes * Element::size>{});
      }
    }
    find(x, call.first + i, call.least, found);
  }
  return i;
}

template <class Element, bool has_velocity, bool streaming>
inline void correct_as(const CorrectCall& call, Candidates& found) {
  std::size_t i = correct_blocks<Element, has_velocity, streaming, pass_width>(call, 0, found);
  i = correct_blocks<Element, has_velocity, streaming, 1>(call, i, found);
  if (const std::size_t rest = call.count - i; rest != 0) {
    std::byte gradient[vector_bytes] = {};
    float rows[4][lanes] = {};
    auto* const from = static_cast<std::byte*>(call.gradient) + i * Element::size;
    std::memcpy(gradient, from, rest * Element::size);
    std::memcpy(rows[0], call.residual + i, rest * sizeof(float));
    if constexpr (has_velocity) {
      std::memcpy(rows[2], call.velocity + i, rest * sizeof(float));
    }
    CorrectCall padded = call;
    padded.gradient = gradient;
    padded.residual = rows[0];
    padded.next_residual = rows[1];
    padded.velocity = rows[2];
    padded.next_velocity = rows[3];
    padded.count = lanes;
    padded.first = call.first + i;
    correct_blocks<Element, has_velocity, false, 1>(padded, 0,
                                                    found);  // padding is 0, so it is never a candidate
    if (call.clear) {
      std::memset(from, 0, rest * Element::size);
    }
    std::memcpy(call.next_residual + i, rows[1], rest * sizeof(float));
    if constexpr (has_velocity) {
      std::memcpy(call.next_velocity + i, rows[3], rest * sizeof(float));
    }
  }
}

template <class Element>
void correct(const CorrectCall& call, Candidates& found) {
  if (call.next_velocity == nullptr) {
    call.streaming ? correct_as<Element, false, true>(call, found) : correct_as<Element, false, false>(call, found);
  } else {
    call.streaming ? correct_as<Element, true, true>(call, found) : correct_as<Element, true, false>(call, found);
  }
  if (call.streaming) {
    streaming_fence();
  }
}

void scan(const float* x, std::size_t count, std::size_t first, std::int32_t least, Candidates& found) {
  const auto* const from = reinterpret_cast<const std::byte*>(x);
  std::size_t i = 0;
  for (; count - i >= pass_width * lanes; i += pass_width * lanes) {
    Floats some[pass_width];
    for (std::size_t v = 0; v < pass_width; ++v) {
      some[v] = load<Floats>(from + (i + v * lanes) * sizeof(float));
    }
    find(some, first + i, least, found);
  }
  for (; i < count; i += lanes) {
    const std::size_t number = count - i < lanes ? count - i : lanes;
    Floats some[1] = {};
    std::memcpy(some, x + i, number * sizeof(float));
    find(some, first + i, least, found);
  }
}

}  // namespace
}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE

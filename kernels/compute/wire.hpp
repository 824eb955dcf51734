// Segments of the wires: float32 values in the form in which they travel in one message.
#pragma once

#include <cstddef>

#include "../base/wire.hpp"
#include "simd.hpp"

namespace gradientflow::compute {

// encode() makes a segment of `count` values, decode() the values of a segment; both multiply each value by `factor`.
// In a wire without a header, elements are rounded to nearest even, as by cast(). In float8_e4m3 the header is a scale:
// the largest finite magnitude over 256, or the smallest normal number if that is larger. The elements are the values
// divided by the scale, rounded to nearest even. Infinity becomes NaN. The values of a segment give the same segment
// again: ranks that pass a result on do not change it. The bits are the same at every SIMD level.
void encode(Wire wire, std::byte* segment, const std::byte* values, std::size_t count, float factor);
void decode(Wire wire, std::byte* values, const std::byte* segment, std::size_t count, float factor);

// The same at a given level, for tests that compare the levels. Throws Error(value) if `level` cannot run here.
void encode_at(SimdLevel level, Wire wire, std::byte* segment, const std::byte* values, std::size_t count,
               float factor);
void decode_at(SimdLevel level, Wire wire, std::byte* values, const std::byte* segment, std::size_t count,
               float factor);

}  // namespace gradientflow::compute

// Segments of the wires: values of float32 as they travel in one message.
#pragma once

#include <cstddef>

#include "../base/wire.hpp"
#include "simd.hpp"

namespace gradientflow::compute {

// A segment of `count` values, each multiplied by `factor`, and the values of a segment, likewise. Without a header an
// element is rounded to nearest even, as by cast(). Values of a segment give the same segment again: ranks that pass a
// result on do not change it. The bits are the same at every SIMD level.
void encode(Wire wire, std::byte* segment, const std::byte* values, std::size_t count, float factor);
void decode(Wire wire, std::byte* values, const std::byte* segment, std::size_t count, float factor);

}  // namespace gradientflow::compute

// The sums of squares from which norms follow: those that LARS needs, and those of gradients.
#pragma once

#include <cstddef>

#include "../base/dtype.hpp"
#include "simd.hpp"

namespace gradientflow::compute {

// The sum of the squares of `count` values of float16, bfloat16 or float32, each times `scale`; added up as the L1 norm
// of chunks.hpp is.
[[nodiscard]] double sum_of_squares(const void* source, DType dtype, std::size_t count, float scale = 1.0F);

// The same at a given level, for tests that compare the levels. Throws Error(value) if `level` cannot run here.
[[nodiscard]] double sum_of_squares_at(SimdLevel level, const void* source, DType dtype, std::size_t count,
                                       float scale);

}  // namespace gradientflow::compute

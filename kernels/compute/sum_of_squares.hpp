// Sums of squares, for the norms of LARS and for norms of gradients.
#pragma once

#include <cstddef>

#include "../base/dtype.hpp"
#include "simd.hpp"

namespace gradientflow::compute {

// Returns the sum of the squares of `count` values of float16, bfloat16 or float32, each times `scale`, added up like
// the L1 norm of chunks.hpp.
[[nodiscard]] double sum_of_squares(const void* source, DType dtype, std::size_t count, float scale = 1.0F);

// Runs at a given level, for tests. Throws Error(value) if `level` cannot run here.
[[nodiscard]] double sum_of_squares_at(SimdLevel level, const void* source, DType dtype, std::size_t count,
                                       float scale);

}  // namespace gradientflow::compute

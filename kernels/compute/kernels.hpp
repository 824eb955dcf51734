// Compute kernels: element-wise reduction of several sources, casts and copies over flat memory.
//
// Pointers need only the alignment of their elements. A source and a destination whose elements have the same size may
// be the same memory; otherwise they must not overlap. Counts are elements and may be 0.
#pragma once

#include <cstddef>
#include <span>

#include "../base/dtype.hpp"
#include "simd.hpp"
#include "store.hpp"

namespace gradientflow::compute {

struct Reduction {
  DType dtype;
  ReduceOp op;
  int divisor = 1;  // divisor of a mean, the number of ranks; 1 for other ops
  Store store = Store::cached;
};

// destinations[d][i] = (sources[0][i] op sources[1][i] op ...) / divisor, for every d, in one pass over memory. The
// operands are in the order of `sources`, for every element and at every SIMD level, so the result has the same bits
// wherever it is computed. 16-bit floats accumulate in float32 and are rounded once, to nearest even. Integers wrap
// around. max and min propagate NaN, as numpy.maximum does; every NaN that a sum, mean or product yields is the quiet
// NaN without sign or payload. A reduction streams only if streaming helps: all destinations lie at the same distance
// from a cache line boundary, and no destination is a source. Throws Error(value) if sources or destinations are empty,
// if the divisor is below 1, or if an op other than mean has a divisor other than 1; Error(type) as check_reducible
// does.
void reduce(std::span<void* const> destinations, std::span<const void* const> sources, std::size_t count,
            const Reduction& reduction);

// destination[i] = source[i] * scale, between float16, bfloat16 and float32 (any pair), rounded to nearest even. A NaN
// becomes the quiet NaN without sign or payload. Throws Error(type) for other dtypes.
void cast(void* destination, DType destination_dtype, const void* source, DType source_dtype, std::size_t count,
          float scale);

// Counts the infinite and NaN values among `count` of float16, bfloat16 or float32. Throws Error(type) for other
// dtypes.
[[nodiscard]] std::size_t count_nonfinite(const void* source, DType dtype, std::size_t count);

// Copies `bytes` bytes between memory that does not overlap.
void copy(void* destination, const void* source, std::size_t bytes, Store store);

// Run the kernels at a given level, for tests. Throw Error(value) if `level` cannot run here.
void reduce_at(SimdLevel level, std::span<void* const> destinations, std::span<const void* const> sources,
               std::size_t count, const Reduction& reduction);
void cast_at(SimdLevel level, void* destination, DType destination_dtype, const void* source, DType source_dtype,
             std::size_t count, float scale);
[[nodiscard]] std::size_t count_nonfinite_at(SimdLevel level, const void* source, DType dtype, std::size_t count);
void copy_at(SimdLevel level, void* destination, const void* source, std::size_t bytes, Store store);

}  // namespace gradientflow::compute

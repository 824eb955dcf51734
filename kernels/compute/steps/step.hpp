// Members of a step, from which its kernels are made.
//
// A step updates arrays of float32, the weights first, by gradients. It is a struct with the members weight, gradient,
// gradient_dtype and count, and perhaps with
//   parameter, parameter_dtype  a copy of the new weights, rounded to nearest even: float16, bfloat16, or nullptr: none
//   store                       the target of the weights, cache or memory
// Kernels on the CPU and on devices use these members:
//   arrays                      the number of its arrays
//   variants, variant()         the number of its variants, and the variant of this call
//   access(variant)             the arrays that are read, and the arrays that are written
//   memory()                    the addresses of the arrays
//   apply<Math>(variant, raw_gradient, x)
//                               its arithmetic: x has the values read, and gets the values to write, of type V, a float
//                               or a vector of floats; Math has canonical_nan and square_root for V
// All results that may be NaN pass through canonical_nan. There is no fused multiply-add, so that the bits are the same
// at every SIMD level and on every device. Pointers need only the alignment of their elements; different pointers of
// one call do not overlap. Counts may be 0.
#pragma once

#include <cstddef>

#include "../../base/dtype.hpp"
#include "../everywhere.hpp"

#define GRADIENTFLOW_STEP [[gnu::always_inline]] GRADIENTFLOW_EVERYWHERE inline

namespace gradientflow::compute {

// Access of a step to its arrays, with one bit for each array.
struct Access {
  unsigned reads;
  unsigned writes;
  bool reads_gradient = true;
};

template <std::size_t arrays>
struct StepMemory {
  const float* reads[arrays];
  float* writes[arrays];
};

}  // namespace gradientflow::compute

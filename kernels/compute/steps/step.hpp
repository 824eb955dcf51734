// What a step is to the kernels.
//
// A step goes over arrays of float32, the weights first, and over gradients, element by element. It is a struct with
// the members weight, gradient, gradient_dtype and count, and perhaps with
//   parameter, parameter_dtype  a copy of the new weights, rounded to nearest even: float16, bfloat16, or nullptr: none
//   store                       where the weights are stored
// and with what its kernels are made of, on the CPU and on devices alike:
//   arrays                      how many arrays it has
//   variants, variant()         in how many variants it comes, and which this call is
//   access(variant)             which arrays are read and written
//   memory()                    where they are
//   apply<Math>(variant, raw_gradient, x)
//                               its arithmetic: x are the values read, and become those to write, of type V, a float or
//                               a vector of them; Math has canonical_nan and square_root for V
// All results that may be NaN pass through canonical_nan. There is no fused multiply-add, so that the bits are the same
// at every SIMD level and on every device. No pointer needs an alignment beyond that of its elements; different
// pointers of one call do not overlap. Counts may be 0.
#pragma once

#include <cstddef>

#include "../../base/dtype.hpp"
#include "../everywhere.hpp"

#define GRADIENTFLOW_STEP [[gnu::always_inline]] GRADIENTFLOW_EVERYWHERE inline

namespace gradientflow::compute {

// One bit for each array; gradients are read unless told otherwise.
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

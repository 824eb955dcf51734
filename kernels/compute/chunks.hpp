// Kernels of coarse-grained sparse communication (GradientFlow paper, section 3.2 and algorithm 1), for the residuals
// of a gradient, and for its sent chunks. Each kernel is one pass over memory.
//
// Gradients are float16, bfloat16 or float32, and computed in float32; residuals are float32. Pointers need only the
// alignment of their elements; different pointers of one call do not overlap. Counts may be 0. All results, norms among
// them, have the same bits at every SIMD level and on every device.
//
// The L1 norm of a chunk is the sum of the absolute values. The sum of a block of norm_block elements is in float32:
// lane l of norm_lanes adds the elements l, l + norm_lanes, ... in this order, then the lanes are added by halves (l
// and l + 32, l and l + 16, ...). The blocks are added in float64, in their order. The norm is infinite or NaN if an
// element is infinite or NaN, or if the sum of a block is beyond float32.
#pragma once

#include <cstddef>

#include "../base/dtype.hpp"
#include "simd.hpp"
#include "store.hpp"

namespace gradientflow::compute {

inline constexpr std::size_t norm_block = 2048;
inline constexpr std::size_t norm_lanes = 64;

// x = gradient * scale + residual; next_residual = momentum * x, unless next_residual is nullptr; gradient = 0. Returns
// the L1 norm of x. next_residual is streamed only if it begins at the boundary of a cache line. Throws Error(value) if
// the momentum is not finite.
struct UpdateResidual {
  void* gradient;
  DType dtype;
  const float* residual;  // nullptr: there is no residual
  float* next_residual;
  std::size_t count;
  float scale = 1.0F;
  float momentum = 1.0F;
  Store store = Store::cached;  // target of next_residual
};
double update_residual(const UpdateResidual& call);

// x = gradient * scale + residual; buffer = x / scale, of the gradient's dtype, rounded once. Returns the L1 norm of x.
// Throws Error(value) unless the scale is a power of two: the scale only keeps 16-bit floats in range.
struct Gather {
  const void* gradient;
  DType dtype;
  const float* residual;  // nullptr: there is no residual
  void* buffer;
  std::size_t count;
  float scale = 1.0F;
};
double gather(const Gather& call);

// gradient = buffer. Returns the L1 norm of buffer * scale.
struct Scatter {
  void* gradient;
  DType dtype;
  const void* buffer;
  std::size_t count;
  float scale = 1.0F;
};
double scatter(const Scatter& call);

// Run the kernels at a given level, for tests. Throw Error(value) if `level` cannot run here.
double update_residual_at(SimdLevel level, const UpdateResidual& call);
double gather_at(SimdLevel level, const Gather& call);
double scatter_at(SimdLevel level, const Scatter& call);

}  // namespace gradientflow::compute

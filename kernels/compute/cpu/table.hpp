// The kernels of one SIMD level as a table of functions. It is the only thing that the files compiled for that level
// give to the rest of the library.
#pragma once

#include <cstddef>

#include "../chunks.hpp"
#include "../optimizer_steps.hpp"

namespace gradientflow::compute {

struct ReduceCall {
  void* const* destinations;
  std::size_t destination_count;  // at least 1
  const void* const* sources;
  std::size_t source_count;  // at least 1
  std::size_t count;         // elements
  int divisor;               // read by mean only
  bool streaming;
};

using ReduceKernel = void (*)(const ReduceCall& call);
using CastKernel = void (*)(void* destination, const void* source, std::size_t count, float scale);
using CountKernel = std::size_t (*)(const void* source, std::size_t count);
using CopyKernel = void (*)(void* destination, const void* source, std::size_t bytes);
using UpdateResidualKernel = double (*)(const UpdateResidual& call);
using GatherKernel = double (*)(const Gather& call);
using ScatterKernel = double (*)(const Scatter& call);
using SquaresKernel = double (*)(const void* source, std::size_t count, float scale);
using MomentumKernel = void (*)(const MomentumStep& call);

// Rows and columns in the order of the enumerators of DType and ReduceOp; nullptr where an op is not defined. Three
// entries stand for float16, bfloat16 and float32.
struct KernelTable {
  ReduceKernel reduce[9][5];
  CastKernel cast[3][3];  // [destination][source]
  CountKernel count_nonfinite[3];
  CopyKernel copy_streaming;
  UpdateResidualKernel update_residual[3];
  GatherKernel gather[3];
  ScatterKernel scatter[3];
  SquaresKernel sum_of_squares[3];
  MomentumKernel momentum_step[3][3];  // [gradient][parameter]; the last column is without a copy of the weights
};

namespace baseline {
extern const KernelTable kernels;
}
namespace avx2 {
extern const KernelTable kernels;
}
namespace avx512 {
extern const KernelTable kernels;
}

}  // namespace gradientflow::compute

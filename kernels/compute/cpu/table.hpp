// Table of the kernels of one SIMD level. The library sees nothing else of the files that are compiled for that level.
#pragma once

#include <cstddef>

#include "../chunks.hpp"
#include "../steps/steps.hpp"
#include "../top_k.hpp"

namespace gradientflow::compute {

struct ReduceCall {
  void* const* destinations;
  std::size_t destination_count;  // 1 or more
  const void* const* sources;
  std::size_t source_count;  // 1 or more
  std::size_t count;         // number of elements
  int divisor;               // read by mean only
  bool streaming;
};

// Elements of a layer that may be sent, in ascending order. After the last there is room for a vector.
struct Candidates {
  std::uint32_t* indices;
  float* values;
  std::size_t number;
};

// Part of a Select call, from element `first` on. All pointers point to that element; only next_velocity may be
// nullptr. Elements of x whose magnitude has the bits `least` (1 or more) or greater bits are appended to the
// candidates.
struct CorrectCall {
  void* gradient;
  const float* residual;
  float* next_residual;
  const float* velocity;
  float* next_velocity;  // nullptr: there is no velocity
  std::size_t count;
  std::size_t first;
  float scale;
  float momentum;
  std::int32_t least;
  bool clear;      // the gradient is zeroed
  bool streaming;  // next_residual and next_velocity, which begin at cache lines, are streamed
};

using ReduceKernel = void (*)(const ReduceCall& call);
using CastKernel = void (*)(void* destination, const void* source, std::size_t count, float scale);
using LargestKernel = float (*)(const void* source, std::size_t count);
using CountKernel = std::size_t (*)(const void* source, std::size_t count);
using CopyKernel = void (*)(void* destination, const void* source, std::size_t bytes);
using UpdateResidualKernel = double (*)(const UpdateResidual& call);
using GatherKernel = double (*)(const Gather& call);
using ScatterKernel = double (*)(const Scatter& call);
using SquaresKernel = double (*)(const void* source, std::size_t count, float scale);
using CorrectKernel = void (*)(const CorrectCall& call, Candidates& found);
using ScanKernel = void (*)(const float* x, std::size_t count, std::size_t first, std::int32_t least,
                            Candidates& found);

// Kernels of one step: [gradient][copy of the weights], the last column without a copy.
template <class Step>
using StepKernel = void (*)(const Step& call);
template <class Step>
struct StepKernels {
  StepKernel<Step> kernels[3][3];
};
using StepTable = AllSteps::All<StepKernels>;

// Kernels in the order of the enumerators of DType and ReduceOp; nullptr if an op is not defined. Tables of three
// entries are for float16, bfloat16 and float32.
struct KernelTable {
  ReduceKernel reduce[9][5];
  CastKernel cast[3][3];  // [destination][source]
  CastKernel to_float8;   // rounds float32
  CastKernel from_float8;
  LargestKernel largest_finite;  // takes float32
  CountKernel count_nonfinite[3];
  CopyKernel copy[2];  // cached, streaming
  UpdateResidualKernel update_residual[3];
  GatherKernel gather[3];
  ScatterKernel scatter[3];
  SquaresKernel sum_of_squares[3];
  StepTable steps;
  CorrectKernel correct[3];
  ScanKernel scan;
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

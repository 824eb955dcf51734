// Element types of the kernels: float16, bfloat16 and float32, computed in float32.
//
// Rounding is to nearest, ties to even, and subnormals are kept, as on the CPU. A NaN from arithmetic differs between
// the device and the CPU: to have the same bits, each NaN that is stored becomes the CPU's.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "../../base/dtype.hpp"

namespace gradientflow::compute::cuda {

__device__ inline float canonical_nan(float value) { return value != value ? __uint_as_float(0x7fc00000U) : value; }

struct Float32 {
  using Stored = float;
  __device__ static float to_float(Stored stored) { return stored; }
  __device__ static Stored from_float(float value) { return value; }
};

// float16. The only NaN that from_float accepts is canonical_nan's.
struct Float16 {
  using Stored = std::uint16_t;
  __device__ static float to_float(Stored stored) { return __half2float(__ushort_as_half(stored)); }
  __device__ static Stored from_float(float value) {
    return value != value ? Stored{0x7e00} : __half_as_ushort(__float2half_rn(value));
  }
};

struct BFloat16 {
  using Stored = std::uint16_t;
  __device__ static float to_float(Stored stored) { return __uint_as_float(static_cast<std::uint32_t>(stored) << 16U); }
  // The addition carries into the upper half exactly if rounding goes up.
  __device__ static Stored from_float(float value) {
    const std::uint32_t bits = __float_as_uint(value);
    return static_cast<Stored>((bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U);
  }
};

// Calls work.operator()<Element>() for the element type of `dtype`. Throws Error(type) as index_among_floats does.
template <class Work>
void with_element(DType dtype, const char* sentence, const Work& work) {
  switch (index_among_floats(dtype, sentence)) {
    case 0:
      return work.template operator()<Float16>();
    case 1:
      return work.template operator()<BFloat16>();
    default:
      return work.template operator()<Float32>();
  }
}

}  // namespace gradientflow::compute::cuda

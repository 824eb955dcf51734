// The kernels in AVX-512 (F, BW, VL, DQ).
#if defined(__x86_64__)
#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512VL__) || !defined(__AVX512DQ__)
#error "compile this file with -mavx512f -mavx512bw -mavx512vl -mavx512dq -mf16c"
#endif
#define GRADIENTFLOW_SIMD_NAMESPACE avx512
#include "kernels_level.hpp"
#endif

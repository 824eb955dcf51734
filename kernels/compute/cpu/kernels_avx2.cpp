// The kernels in AVX2 and F16C, without FMA on purpose: a fused multiply-add rounds differently from the two
// instructions of other levels.
#if defined(__x86_64__)
#if !defined(__AVX2__) || !defined(__F16C__)
#error "compile this file with -mavx2 -mf16c"
#endif
#define GRADIENTFLOW_SIMD_NAMESPACE avx2
#include "kernels_level.hpp"
#endif

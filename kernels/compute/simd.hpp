// Vector instructions of the kernels, chosen once at run time.
//
// Every kernel is compiled three times, for the x86-64 baseline, for AVX2 with F16C, and for AVX-512; on other
// processors only the baseline exists. So a library also runs on processors older than the build machine's.
#pragma once

#include <string_view>

namespace gradientflow::compute {

enum class SimdLevel { baseline, avx2, avx512 };

[[nodiscard]] std::string_view name_of(SimdLevel level);
[[nodiscard]] SimdLevel simd_from_name(std::string_view name);  // throws Error(value) naming the levels
[[nodiscard]] SimdLevel best_simd();    // the best level that this processor and this build support
[[nodiscard]] SimdLevel active_simd();  // best_simd(), or less if GRADIENTFLOW_SIMD requests less; throws Error(value)
                                        // if it requests more

}  // namespace gradientflow::compute

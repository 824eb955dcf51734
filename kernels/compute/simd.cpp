#include "simd.hpp"

#include <array>
#include <string>

#include "../base/config.hpp"
#include "../base/error.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace gradientflow::compute {
namespace {

constexpr std::array<std::string_view, 3> names = {"baseline", "avx2",
                                                   "avx512"};  // names in the order of enum class SimdLevel

// The compiler's own test also fails if the operating system does not save the wide registers. Older compilers have no
// test for F16C, so the processor's bit for F16C is read directly; F16C uses the registers of AVX2.
SimdLevel detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  if (!f16c || !__builtin_cpu_supports("avx2")) {
    return SimdLevel::baseline;
  }
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return avx512 ? SimdLevel::avx512 : SimdLevel::avx2;
#else
  return SimdLevel::baseline;
#endif
}

SimdLevel choose() {
  const std::string wanted = read_config().simd;
  if (wanted == "auto") {
    return best_simd();
  }
  const SimdLevel level = simd_from_name(wanted);
  if (level > best_simd()) {
    throw Error(ErrorKind::value, "GRADIENTFLOW_SIMD asks for " + wanted + ", but this processor and build offer " +
                                      std::string(name_of(best_simd())) + " at most");
  }
  return level;
}

}  // namespace

std::string_view name_of(SimdLevel level) { return names.at(static_cast<std::size_t>(level)); }

SimdLevel simd_from_name(std::string_view name) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) {
      return static_cast<SimdLevel>(i);
    }
  }
  throw Error(ErrorKind::value,
              "unknown SIMD level '" + std::string(name) + "'; the levels are baseline, avx2 and avx512");
}

SimdLevel best_simd() {
  static const SimdLevel best = detect();
  return best;
}

SimdLevel active_simd() {
  static const SimdLevel active = choose();
  return active;
}

}  // namespace gradientflow::compute

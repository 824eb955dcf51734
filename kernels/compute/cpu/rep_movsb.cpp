#include "rep_movsb.hpp"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace gradientflow::compute {
namespace {

bool detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  constexpr unsigned enhanced_movsb = 1U << 9U;
  const bool enhanced = __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx & enhanced_movsb) != 0;
  return enhanced && !__builtin_cpu_is("amdfam19h");
#else
  return false;
#endif
}

}  // namespace

bool rep_movsb_is_fast() {
  static const bool fast = detect();
  return fast;
}

void copy_rep_movsb(void* destination, const void* source, std::size_t bytes) {
#if defined(__x86_64__) && !defined(GRADIENTFLOW_SANITIZED)
  asm volatile("rep movsb" : "+D"(destination), "+S"(source), "+c"(bytes) : : "memory");  // NOLINT(*-no-assembler)
#else
  std::memcpy(destination, source, bytes);
#endif
}

}  // namespace gradientflow::compute

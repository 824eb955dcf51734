#include "select.hpp"

#include <string>

#include "../../base/error.hpp"

namespace gradientflow::compute {

const KernelTable& table_at(SimdLevel level) {
  if (level > best_simd()) {
    throw Error(ErrorKind::value, "SIMD level " + std::string(name_of(level)) +
                                      " cannot run here; this processor and build offer " +
                                      std::string(name_of(best_simd())) + " at most");
  }
#if defined(__x86_64__)
  switch (level) {
    case SimdLevel::baseline:
      return baseline::kernels;
    case SimdLevel::avx2:
      return avx2::kernels;
    case SimdLevel::avx512:
      return avx512::kernels;
  }
#endif
  return baseline::kernels;
}

const KernelTable& active_table() {
  static const KernelTable& table = table_at(active_simd());
  return table;
}

}  // namespace gradientflow::compute

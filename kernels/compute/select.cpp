#include "select.hpp"

#include <string>

#include "../base/error.hpp"

namespace gradientflow::compute {

static_assert(static_cast<int>(DType::float16) == 0 && static_cast<int>(DType::bfloat16) == 1 &&
              static_cast<int>(DType::float32) == 2);

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

std::size_t index_among_floats(DType dtype, const char* sentence) {
  if (dtype != DType::float16 && dtype != DType::bfloat16 && dtype != DType::float32) {
    throw Error(ErrorKind::type, std::string(sentence) + ", not " + std::string(name_of(dtype)));
  }
  return static_cast<std::size_t>(dtype);
}

}  // namespace gradientflow::compute

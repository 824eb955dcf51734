// Which kernels a call uses: those of a SIMD level, and in a table those of an element type.
#pragma once

#include <cstddef>

#include "../base/dtype.hpp"
#include "simd.hpp"
#include "table.hpp"

namespace gradientflow::compute {

[[nodiscard]] const KernelTable& table_at(SimdLevel level);  // throws Error(value) if `level` cannot run here
[[nodiscard]] const KernelTable& active_table();

// The index of float16, bfloat16 or float32 among these three. Throws Error(type) for another dtype: `sentence` says
// where only these three may be.
[[nodiscard]] std::size_t index_among_floats(DType dtype, const char* sentence);

}  // namespace gradientflow::compute

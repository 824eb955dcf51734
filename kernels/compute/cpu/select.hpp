// Which kernels a call uses: those of a SIMD level, and in a table those of an element type.
#pragma once

#include "../simd.hpp"
#include "table.hpp"

namespace gradientflow::compute {

[[nodiscard]] const KernelTable& table_at(SimdLevel level);  // throws Error(value) if `level` cannot run here
[[nodiscard]] const KernelTable& active_table();

}  // namespace gradientflow::compute

// Selection of the table of kernels that a call uses.
#pragma once

#include "../simd.hpp"
#include "table.hpp"

namespace gradientflow::compute {

[[nodiscard]] const KernelTable& table_at(SimdLevel level);  // throws Error(value) if `level` cannot run here
[[nodiscard]] const KernelTable& active_table();

}  // namespace gradientflow::compute

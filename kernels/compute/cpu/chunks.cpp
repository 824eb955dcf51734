// Entry points of chunks.hpp.
#include "../chunks.hpp"

#include <cmath>
#include <limits>
#include <string>

#include "../../base/error.hpp"
#include "select.hpp"

namespace gradientflow::compute {
namespace {

std::size_t gradient_index(DType dtype) {
  return index_among_floats(dtype, "the gradients of sparse communication are float16, bfloat16 or float32");
}

// Gives NaN the same bits everywhere.
double norm_of(double sum) { return std::isnan(sum) ? std::numeric_limits<double>::quiet_NaN() : sum; }

// Throws unless the scale and its reciprocal are powers of two, so that multiplying replaces dividing.
void check_scale(float scale) {
  int exponent = 0;
  if (std::frexp(scale, &exponent) != 0.5F || !std::isnormal(1 / scale)) {
    throw Error(ErrorKind::value,
                "the scale of gathered gradients must be a power of two, not " + std::to_string(scale));
  }
}

double update_residual_with(const KernelTable& table, const UpdateResidual& call) {
  if (!std::isfinite(call.momentum)) {
    throw Error(ErrorKind::value, "the momentum of residuals must be finite");
  }
  return norm_of(table.update_residual[gradient_index(call.dtype)](call));
}

double gather_with(const KernelTable& table, const Gather& call) {
  check_scale(call.scale);
  return norm_of(table.gather[gradient_index(call.dtype)](call));
}

double scatter_with(const KernelTable& table, const Scatter& call) {
  return norm_of(table.scatter[gradient_index(call.dtype)](call));
}

}  // namespace

double update_residual(const UpdateResidual& call) { return update_residual_with(active_table(), call); }
double gather(const Gather& call) { return gather_with(active_table(), call); }
double scatter(const Scatter& call) { return scatter_with(active_table(), call); }

double update_residual_at(SimdLevel level, const UpdateResidual& call) {
  return update_residual_with(table_at(level), call);
}
double gather_at(SimdLevel level, const Gather& call) { return gather_with(table_at(level), call); }
double scatter_at(SimdLevel level, const Scatter& call) { return scatter_with(table_at(level), call); }

}  // namespace gradientflow::compute

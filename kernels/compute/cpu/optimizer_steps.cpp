// The entry points of optimizer_steps.hpp and adam_step.hpp.
#include "../optimizer_steps.hpp"

#include <cmath>
#include <limits>
#include <string>

#include "../../base/error.hpp"
#include "../adam_step.hpp"
#include "select.hpp"

namespace gradientflow::compute {
namespace {

// The column of the tables of steps.
template <class Step>
std::size_t parameter_index(const Step& call) {
  constexpr std::size_t no_copy = 2;
  if (call.parameter == nullptr) {
    return no_copy;
  }
  if (call.parameter_dtype != DType::float16 && call.parameter_dtype != DType::bfloat16) {
    throw Error(ErrorKind::type,
                "a copy of the weights is float16 or bfloat16, not " + std::string(name_of(call.parameter_dtype)));
  }
  return static_cast<std::size_t>(call.parameter_dtype);
}

template <class Kernel, class Step>
void step_with(const Kernel (&kernels)[3][3], const Step& call) {
  const std::size_t gradient =
      index_among_floats(call.gradient_dtype, "the gradients of an optimizer are float16, bfloat16 or float32");
  kernels[gradient][parameter_index(call)](call);
}

double squares_with(const KernelTable& table, const void* source, DType dtype, std::size_t count, float scale) {
  const auto kernel =
      table.sum_of_squares[index_among_floats(dtype, "sum_of_squares is for float16, bfloat16 and float32")];
  const double sum = kernel(source, count, scale);
  return std::isnan(sum) ? std::numeric_limits<double>::quiet_NaN() : sum;
}

}  // namespace

void momentum_step(const MomentumStep& call) { step_with(active_table().momentum_step, call); }

void adam_step(const AdamStep& call) { step_with(active_table().adam_step, call); }

double sum_of_squares(const void* source, DType dtype, std::size_t count, float scale) {
  return squares_with(active_table(), source, dtype, count, scale);
}

void momentum_step_at(SimdLevel level, const MomentumStep& call) { step_with(table_at(level).momentum_step, call); }

void adam_step_at(SimdLevel level, const AdamStep& call) { step_with(table_at(level).adam_step, call); }

double sum_of_squares_at(SimdLevel level, const void* source, DType dtype, std::size_t count, float scale) {
  return squares_with(table_at(level), source, dtype, count, scale);
}

}  // namespace gradientflow::compute

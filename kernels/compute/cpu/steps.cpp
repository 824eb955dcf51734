// Entry points of steps.hpp.
#include "../steps/steps.hpp"

#include <string>

#include "../../base/error.hpp"
#include "select.hpp"

namespace gradientflow::compute {
namespace {

// Returns the column of a step's kernels.
template <class Step>
std::size_t copy_index(const Step& call) {
  constexpr std::size_t no_copy = 2;
  if constexpr (requires { call.parameter; }) {
    if (call.parameter != nullptr) {
      if (call.parameter_dtype != DType::float16 && call.parameter_dtype != DType::bfloat16) {
        throw Error(ErrorKind::type,
                    "a copy of the weights is float16 or bfloat16, not " + std::string(name_of(call.parameter_dtype)));
      }
      return static_cast<std::size_t>(call.parameter_dtype);
    }
  }
  return no_copy;
}

void run_with(const KernelTable& table, AnyStep any) {
  std::visit(
      [&table]<class Step>(const Step* call) {
        const StepKernels<Step>& of_step = table.steps;
        const std::size_t gradient =
            index_among_floats(call->gradient_dtype, "the gradients of a step are float16, bfloat16 or float32");
        of_step.kernels[gradient][copy_index(*call)](*call);
      },
      any);
}

}  // namespace

void run_step(AnyStep call) { run_with(active_table(), call); }

void run_step_at(SimdLevel level, AnyStep call) { run_with(table_at(level), call); }

}  // namespace gradientflow::compute

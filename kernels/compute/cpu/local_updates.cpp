// The entry points of local_updates.hpp.
#include "../local_updates.hpp"

#include "select.hpp"

namespace gradientflow::compute {
namespace {

std::size_t update_index(DType gradient) {
  return index_among_floats(gradient, "the gradients of a local update are float16, bfloat16 or float32");
}

}  // namespace

void glu_step(const GluStep& call) { active_table().glu_step[update_index(call.gradient_dtype)](call); }

void dc_step(const DcStep& call) { active_table().dc_step[update_index(call.gradient_dtype)](call); }

void glu_step_at(SimdLevel level, const GluStep& call) {
  table_at(level).glu_step[update_index(call.gradient_dtype)](call);
}

void dc_step_at(SimdLevel level, const DcStep& call) {
  table_at(level).dc_step[update_index(call.gradient_dtype)](call);
}

}  // namespace gradientflow::compute

// The entry points of replica_steps.hpp.
#include "../replica_steps.hpp"

#include "select.hpp"

namespace gradientflow::compute {
namespace {

std::size_t replica_index(DType gradient) {
  return index_among_floats(gradient, "the gradients of a replica are float16, bfloat16 or float32");
}

}  // namespace

void replica_step(const ReplicaStep& call) { active_table().replica_step[replica_index(call.gradient_dtype)](call); }

void round_step(const RoundStep& call) { active_table().round_step[replica_index(call.gradient_dtype)](call); }

void replica_step_at(SimdLevel level, const ReplicaStep& call) {
  table_at(level).replica_step[replica_index(call.gradient_dtype)](call);
}

void round_step_at(SimdLevel level, const RoundStep& call) {
  table_at(level).round_step[replica_index(call.gradient_dtype)](call);
}

}  // namespace gradientflow::compute

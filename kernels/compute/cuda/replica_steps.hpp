// The kernels of ../replica_steps.hpp on a CUDA device, for many tensors at once: the same bits. All memory is the
// device's, and all work is put into the stream; memory is accessed as chunks.hpp says. Throws Error(type) unless the
// list's dtype is float16, bfloat16 or float32.
#pragma once

#include "../replica_steps.hpp"
#include "call_list.hpp"
#include "stream.hpp"

namespace gradientflow::compute::cuda {

void replica_step(const CallList<ReplicaStep>& list, Stream stream);
void round_step(const CallList<RoundStep>& list, Stream stream);

}  // namespace gradientflow::compute::cuda

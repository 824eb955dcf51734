// Steps of ../steps/steps.hpp on a CUDA device, for many tensors at once: the same bits. All memory is the
// device's, or pinned memory of the host, and all work is put into the stream; memory is accessed as chunks.hpp says.
// Throws Error(type) unless the list's dtype is float16, bfloat16 or float32.
#pragma once

#include "../steps/steps.hpp"
#include "call_list.hpp"
#include "stream.hpp"

namespace gradientflow::compute::cuda {

using AnyStepList = AllSteps::Any<CallList>;

void step(const AnyStepList& list, Stream stream);

}  // namespace gradientflow::compute::cuda

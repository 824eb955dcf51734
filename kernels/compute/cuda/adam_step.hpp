// The kernel of ../adam_step.hpp on a CUDA device, for many tensors at once: the same bits. All memory is the device's,
// and all work is put into the stream; memory is accessed as chunks.hpp says. Throws Error(type) unless the list's
// dtype is float16, bfloat16 or float32.
#pragma once

#include "../adam_step.hpp"
#include "call_list.hpp"
#include "stream.hpp"

namespace gradientflow::compute::cuda {

void adam_step(const CallList<AdamStep>& list, Stream stream);

}  // namespace gradientflow::compute::cuda

// Kernels of ../chunks.hpp on a CUDA device, for many chunks at once: the same calls, the same bits.
//
// All memory is the device's, and all work is put into the stream. norms[i] becomes the norm of call i of the list;
// `scratch` has scratch_bytes(list). The fields of a call are on the device, so they are not checked. Memory is
// accessed 16 bytes at a time (8 bytes for 16-bit floats beside float32) if the pointers of a call are aligned
// accordingly, otherwise element by element. Throws Error(type) unless the list's dtype is float16, bfloat16 or
// float32.
#pragma once

#include "call_list.hpp"
#include "stream.hpp"

namespace gradientflow::compute::cuda {

void update_residual(const CallList<UpdateResidual>& list, double* norms, void* scratch, Stream stream);
void gather(const CallList<Gather>& list, double* norms, void* scratch, Stream stream);
void scatter(const CallList<Scatter>& list, double* norms, void* scratch, Stream stream);

}  // namespace gradientflow::compute::cuda

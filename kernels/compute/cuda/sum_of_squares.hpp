// Kernel of ../sum_of_squares.hpp on a CUDA device, for many tensors at once: the same bits. All memory is the
// device's, and all work is put into the stream; memory is accessed as chunks.hpp says. Throws Error(type) unless the
// list's dtype is float16, bfloat16 or float32.
#pragma once

#include "call_list.hpp"
#include "stream.hpp"

namespace gradientflow::compute::cuda {

struct SumOfSquares {
  const void* source;
  std::size_t count;
  float scale = 1.0F;
};

// Writes the sum of call i to sums[i]. `scratch` has scratch_bytes(list).
void sum_of_squares(const CallList<SumOfSquares>& list, double* sums, void* scratch, Stream stream);

}  // namespace gradientflow::compute::cuda

// A collective call, and what keeps its tensors alive.
#pragma once

#include "../kernels/collective/call/call.hpp"
#include "../kernels/engine/calls/communicator.hpp"
#include "tensor.hpp"

namespace gradientflow::bindings {

struct BoundCall {
  collective::Call call;
  TensorView input;
  TensorView output;
  bool streams_are_known = true;  // of tensors on a device
};

// Returns once the call has ended.
void run(engine::Communicator& communicator, BoundCall bound);

}  // namespace gradientflow::bindings

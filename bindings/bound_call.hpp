// Collective call, with the owners of its tensors.
#pragma once

#include "../kernels/collective/call/call.hpp"
#include "../kernels/engine/calls/communicator.hpp"
#include "tensor.hpp"

namespace gradientflow::bindings {

struct BoundCall {
  collective::Call call;
  TensorView input;
  TensorView output;
  bool streams_are_known = true;  // false if a device tensor's stream is unknown
};

// Returns once the call has ended.
void run(engine::Communicator& communicator, BoundCall bound);

}  // namespace gradientflow::bindings

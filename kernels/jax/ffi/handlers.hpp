// The handlers that gradientflow.jax registers with XLA: what runs inside of a compiled program, in a thread of XLA's.
#pragma once

#include "call_frame.hpp"

namespace gradientflow::jax {

// Reduces an array over the ranks, in place where XLA gives one buffer for both. Operands: XLA's token, the array;
// results: the same. Attributes: comm (the number of a communicator), op, wire (empty for none), label.
XLA_FFI_Error* allreduce(XLA_FFI_CallFrame* frame) noexcept;

// Averages gradients. Operands and results: see Exchange. Attributes: exchanges, the number of the Exchanges, and
// layout, the hash that their tokens have.
XLA_FFI_Error* average(XLA_FFI_CallFrame* frame) noexcept;

}  // namespace gradientflow::jax

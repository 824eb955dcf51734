// Handlers that gradientflow.jax registers with XLA. They run inside a compiled program, in a thread of XLA.
#pragma once

#include "call_frame.hpp"

namespace gradientflow::jax {

// Reduces an array over the ranks, in place if XLA gives one buffer for both. Operands: XLA's token, the array;
// results: the same. Attributes: comm (the number of a communicator), op, wire (empty for none), label.
XLA_FFI_Error* allreduce(XLA_FFI_CallFrame* frame) noexcept;

// Averages gradients. Operands and results: see GradientExchange. Attributes: exchanges, the number of the ExchangeSet,
// and layout, the hash in their tokens.
XLA_FFI_Error* average(XLA_FFI_CallFrame* frame) noexcept;

}  // namespace gradientflow::jax

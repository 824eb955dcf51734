// Numbers for what a compiled program refers to. A program outlives the objects that it was traced with, and may come
// from JAX's cache of compiled programs: so it has a number, and never an address.
#pragma once

#include <cstdint>
#include <memory>

#include "../../engine/calls/communicator.hpp"
#include "call_frame.hpp"

namespace gradientflow::jax {

// An exchange of gradients: what a call of `average` does.
class Exchange {
 public:
  Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  virtual ~Exchange() = default;

  // Operands: the token, the gradients, further state. Results: the same, in the same order.
  virtual void run(const CallFrame& frame) = 0;
};

// The number of an object: a new one unless it has one. Numbers are never given twice.
std::int64_t number_of(const std::shared_ptr<engine::Communicator>& communicator);
std::int64_t number_of(const std::shared_ptr<Exchange>& exchange);

// The object of a number. Throws Error(closed) if it is gone.
std::shared_ptr<engine::Communicator> communicator_of(std::int64_t number);
std::shared_ptr<Exchange> exchange_of(std::int64_t number);

}  // namespace gradientflow::jax

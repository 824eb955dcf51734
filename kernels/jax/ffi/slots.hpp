// Numbers of the objects that a compiled program refers to. A program outlives the objects that it was traced with, and
// may come from JAX's cache of compiled programs. So it holds a number, and never an address.
#pragma once

#include <cstdint>
#include <memory>

#include "../../engine/calls/communicator.hpp"
#include "exchanges.hpp"

namespace gradientflow::jax {

// Returns the number of an object, a new number at the first call. A number is never used for a second object.
std::int64_t number_of(const std::shared_ptr<engine::Communicator>& communicator);
std::int64_t number_of(const std::shared_ptr<ExchangeSet>& exchanges);

// Returns the object of a number. Throws Error(closed) if it is gone.
std::shared_ptr<engine::Communicator> communicator_of(std::int64_t number);
std::shared_ptr<ExchangeSet> exchanges_of(std::int64_t number);

}  // namespace gradientflow::jax

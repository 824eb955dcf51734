// Numbers for what a compiled program refers to. A program outlives the objects that it was traced with, and may come
// from JAX's cache of compiled programs: so it has a number, and never an address.
#pragma once

#include <cstdint>
#include <memory>

#include "../../engine/calls/communicator.hpp"
#include "exchanges.hpp"

namespace gradientflow::jax {

// The number of an object: a new one unless it has one. Numbers are never given twice.
std::int64_t number_of(const std::shared_ptr<engine::Communicator>& communicator);
std::int64_t number_of(const std::shared_ptr<Exchanges>& exchanges);

// The object of a number. Throws Error(closed) if it is gone.
std::shared_ptr<engine::Communicator> communicator_of(std::int64_t number);
std::shared_ptr<Exchanges> exchanges_of(std::int64_t number);

}  // namespace gradientflow::jax

// The reductions that the core does not have, of two arrays.
#pragma once

#include <cstddef>

#include "abi.hpp"

namespace gradientflow::mpiabi {

// into[i] = into[i] op with[i]
using Combine = void (*)(std::byte* into, const std::byte* with, std::size_t count);

// For 16-bit integers, the order of unsigned integers and products of complex numbers. Throws Error(type) for others.
[[nodiscard]] Combine combine_of(Type type, Op op);

}  // namespace gradientflow::mpiabi

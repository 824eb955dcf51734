// Elementwise reductions of two arrays, for types and operations that the core does not have.
#pragma once

#include <cstddef>

#include "abi.hpp"

namespace gradientflow::mpiabi {

// into[i] = into[i] op with[i]
using Combine = void (*)(std::byte* into, const std::byte* with, std::size_t count);

// Finds the reduction for 16-bit integers, minima and maxima of unsigned integers, and products of complex numbers.
// Throws Error(type) otherwise.
[[nodiscard]] Combine combine_of(Type type, Op op);

}  // namespace gradientflow::mpiabi

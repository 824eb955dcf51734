// Layout of the tensors of a pool.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "../../base/dtype.hpp"

namespace gradientflow::engine {

// Returns the start of each tensor of `counts` elements, in bytes, then the end of the last tensor. Tensors are
// consecutive, each at a multiple of 64 bytes. Throws Error(value) beyond 1 TiB.
[[nodiscard]] std::vector<std::size_t> lay_out(const std::vector<std::size_t>& counts, DType dtype);

// Converts offsets of lay_out() to elements.
[[nodiscard]] std::vector<std::size_t> in_elements(std::span<const std::size_t> offsets, DType dtype);

}  // namespace gradientflow::engine

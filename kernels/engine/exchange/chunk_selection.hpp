// Choice of the important chunks of the gradients: the chunks with the largest L1 norms (GradientFlow paper, section
// 3.2). Pure functions of numbers that are the same on all ranks, so all ranks choose alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gradientflow::engine {

// Returns ceil(density * chunks), tolerant of a rounding error in the density; at least 1 if there are chunks. Throws
// Error(value) unless the density is above 0 and at most 1.
[[nodiscard]] std::size_t important_count(double density, std::size_t chunks);

// Returns, for each chunk, 1 if its norm is among the `count` largest, otherwise 0. Among chunks with equal norms, the
// lower index wins.
[[nodiscard]] std::vector<std::uint8_t> choose_important(std::span<const double> norms, std::size_t count);

}  // namespace gradientflow::engine

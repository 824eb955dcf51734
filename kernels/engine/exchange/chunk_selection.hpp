// Which chunks of the gradients are important (GradientFlow paper, section 3.2): those with the largest L1 norms. Pure
// functions of numbers that are the same on all ranks, so all ranks choose alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gradientflow::engine {

// ceil(density * chunks), tolerant of a rounding error in the density; at least 1 if there are chunks. Throws
// Error(value) unless the density is above 0 and at most 1.
[[nodiscard]] std::size_t important_count(double density, std::size_t chunks);

// By chunk: 1 for the `count` of largest norm, 0 for the others. Of equal norms the lower index wins.
[[nodiscard]] std::vector<std::uint8_t> choose_important(std::span<const double> norms, std::size_t count);

}  // namespace gradientflow::engine

// Number of the averaged gradients that a pool holds between two iterations. The number is unique among all iterations
// of all pools, so an optimizer takes the same averages only once.
#pragma once

#include <atomic>
#include <cstdint>

#include "../../base/error.hpp"

namespace gradientflow::engine {

using Means = std::uint64_t;

inline constexpr Means no_means = 0;  // no means: an iteration is under way or failed, or no iteration was made

[[nodiscard]] inline Means new_means() {
  static std::atomic<Means> last{no_means};
  return ++last;
}

// Returns the error of an iteration that averaged nothing.
[[nodiscard]] inline Error nothing_ready_error() {
  return {ErrorKind::value,
          "no rank made a tensor of the pool ready before it waited: the averages are zeros, and no gradients"};
}

}  // namespace gradientflow::engine

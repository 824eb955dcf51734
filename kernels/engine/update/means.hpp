// The averaged gradients that the tensors of a pool hold between two iterations, by a number: a step takes them once,
// and no other iteration of any pool has the same number.
#pragma once

#include <atomic>
#include <cstdint>

#include "../../base/error.hpp"

namespace gradientflow::engine {

using Means = std::uint64_t;

inline constexpr Means no_means = 0;  // an iteration is under way, or failed, or there was none

[[nodiscard]] inline Means new_means() {
  static std::atomic<Means> last{no_means};
  return ++last;
}

// Of an iteration that averaged nothing.
[[nodiscard]] inline Error nothing_ready_error() {
  return {ErrorKind::value,
          "no rank made a tensor of the pool ready before it waited: the averages are zeros, and no gradients"};
}

}  // namespace gradientflow::engine

// What leads from one call of `average` to the next: four numbers in the state of the transformation.
//
// XLA starts calls in any order unless one needs the result of another. So each call takes the token of the call
// before it, and gives one for the next. The first number counts the calls; since it lies in the state, and so in
// checkpoints, ranks whose states are of different calls can tell. The second is a hash of the gradients' shapes and so
// on. The others belong to `average` in Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "call_frame.hpp"

namespace gradientflow::jax {

// The calls before this one.
[[nodiscard]] std::uint32_t count_of(const Buffer& token);

void check_layout(std::int64_t layout, const Buffer& token);  // throws Error(value) unless the token has this hash

// The same token with another count.
void write_token(const Buffer& before, std::uint32_t count, const Buffer& after);

// Numbers to be averaged with the gradients, which show whether all ranks make the same call.
[[nodiscard]] std::size_t marks_needed();
void write_marks(std::uint32_t count, std::span<double> marks);
void check_marks(std::uint32_t count, std::span<const double> means);  // throws Error(mismatch)

}  // namespace gradientflow::jax

// Token that links a call of `average` to the next: five numbers in the state of the transformation.
//
// XLA starts calls in any order unless a call needs the result of another call. So each call takes the token of the
// call before it, and gives a token to the next. The token lies in the state, and therefore in checkpoints too, so
// ranks notice if their states come from different calls.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "call_frame.hpp"

namespace gradientflow::jax {

struct Token {
  std::uint32_t count;                 // number of calls before this call
  std::uint32_t layout;                // hash of the gradients' shapes and the like
  std::array<std::uint32_t, 2> nonce;  // numbers of `average` in Python
  std::uint32_t state;                 // number of the state and of its successors, from 1 on

  bool operator==(const Token&) const = default;
};

[[nodiscard]] Token token_of(const Buffer& buffer);
void write_token(const Token& token, const Buffer& buffer);

void check_layout(std::int64_t layout, const Token& token);  // throws Error(value) unless the token has this hash

// Marks: numbers averaged with the gradients, which show if all ranks make the same call, and if no rank refuses it.
[[nodiscard]] std::size_t marks_needed();
void write_marks(std::uint32_t count, bool refused, std::span<double> marks);
void check_marks(std::uint32_t count, std::span<const double> means);  // throws Error(mismatch)

// Throws Error(mismatch) about a program that has used a state twice.
[[noreturn]] void refuse();

}  // namespace gradientflow::jax

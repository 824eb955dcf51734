// What leads from one call of `average` to the next: five numbers in the state of the transformation.
//
// XLA starts calls in any order unless one needs the result of another. So each call takes the token of the call
// before it, and gives one for the next. Since it lies in the state, and so in checkpoints, ranks whose states are of
// different calls can tell.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "call_frame.hpp"

namespace gradientflow::jax {

struct Token {
  std::uint32_t count;                 // the calls before this one
  std::uint32_t layout;                // a hash of the gradients' shapes and so on
  std::array<std::uint32_t, 2> nonce;  // belongs to `average` in Python
  std::uint32_t state;                 // the number of the state, from 1 on, which its successors have, too

  bool operator==(const Token&) const = default;
};

[[nodiscard]] Token token_of(const Buffer& buffer);
void write_token(const Token& token, const Buffer& buffer);

void check_layout(std::int64_t layout, const Token& token);  // throws Error(value) unless the token has this hash

// Numbers to be averaged with the gradients, which show whether all ranks make the same call, and none refuses it.
[[nodiscard]] std::size_t marks_needed();
void write_marks(std::uint32_t count, bool refused, std::span<double> marks);
void check_marks(std::uint32_t count, std::span<const double> means);  // throws Error(mismatch)

// Throws Error(mismatch), since a program has used a state twice.
[[noreturn]] void refuse();

}  // namespace gradientflow::jax

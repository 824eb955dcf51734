#include "token.hpp"

#include <cstring>
#include <string>

#include "../../base/error.hpp"

namespace gradientflow::jax {
namespace {

// Bits of the count in the marks. Averages may be rounded, but only the mean of zeros is zero. So each bit has two
// numbers: 1 and 0 if the bit is set, otherwise 0 and 1. This number of bits distinguishes neighboring and distant
// counts.
constexpr std::size_t bits = 16;

bool is_set(std::uint32_t count, std::size_t bit) { return ((count >> bit) & 1U) != 0; }

}  // namespace

Token token_of(const Buffer& buffer) {
  Token token{};
  std::memcpy(&token, buffer.data, sizeof(token));
  return token;
}

void write_token(const Token& token, const Buffer& buffer) { std::memcpy(buffer.data, &token, sizeof(token)); }

void check_layout(std::int64_t layout, const Token& token) {
  if (token.layout != layout) {
    throw Error(
        ErrorKind::value,
        "the state of average is that of other gradients or of another strategy: make a new one by init() with a "
        "tree of arrays like the gradients");
  }
}

std::size_t marks_needed() { return 2 * bits + 1; }

void write_marks(std::uint32_t count, bool refused, std::span<double> marks) {
  for (std::size_t bit = 0; bit < bits; ++bit) {
    marks[2 * bit] = is_set(count, bit) ? 1 : 0;
    marks[2 * bit + 1] = is_set(count, bit) ? 0 : 1;
  }
  marks[2 * bits] = refused ? 1 : 0;
}

void check_marks(std::uint32_t count, std::span<const double> means) {
  if (means[2 * bits] != 0) {
    refuse();
  }
  for (std::size_t bit = 0; bit < bits; ++bit) {
    if (means[2 * bit + (is_set(count, bit) ? 1 : 0)] != 0) {
      throw Error(ErrorKind::mismatch,
                  "the ranks average gradients with states of different calls: this rank's state has seen " +
                      std::to_string(count) +
                      " calls, and that of another rank more or fewer; all ranks make the same calls of average in the "
                      "same order, and restore states of the same step");
    }
  }
}

void refuse() {
  throw Error(ErrorKind::mismatch,
              "a program gives one state of average, or a state and a copy of it, to two calls, which XLA may start in "
              "another order on each rank: pass on the state that each call returns, make a state of its own for each "
              "by init() outside of jax.jit, or average all gradients by one call");
}

}  // namespace gradientflow::jax

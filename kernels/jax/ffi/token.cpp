#include "token.hpp"

#include <cstring>
#include <string>

#include "../../base/error.hpp"

namespace gradientflow::jax {
namespace {

// Averages may be rounded, but only the mean of zeros is zero: each bit has a number that is 1 where it is set, and one
// that is 1 where it is not. So many bits of the count are enough to tell neighbours apart, and far more than them.
constexpr std::size_t bits = 16;

bool is_set(std::uint32_t count, std::size_t bit) { return ((count >> bit) & 1U) != 0; }

}  // namespace

std::uint32_t count_of(const Buffer& token) {
  std::uint32_t count = 0;
  std::memcpy(&count, token.data, sizeof(count));
  return count;
}

void check_layout(std::int64_t layout, const Buffer& token) {
  std::uint32_t found = 0;
  std::memcpy(&found, token.data + sizeof(found), sizeof(found));
  if (found != layout) {
    throw Error(
        ErrorKind::value,
        "the state of average is that of other gradients or of another strategy: make a new one by init() with a "
        "tree of arrays like the gradients");
  }
}

void write_token(const Buffer& before, std::uint32_t count, const Buffer& after) {
  std::memmove(after.data, before.data, before.bytes());
  std::memcpy(after.data, &count, sizeof(count));
}

std::size_t marks_needed() { return 2 * bits; }

void write_marks(std::uint32_t count, std::span<double> marks) {
  for (std::size_t bit = 0; bit < bits; ++bit) {
    marks[2 * bit] = is_set(count, bit) ? 1 : 0;
    marks[2 * bit + 1] = is_set(count, bit) ? 0 : 1;
  }
}

void check_marks(std::uint32_t count, std::span<const double> means) {
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

}  // namespace gradientflow::jax

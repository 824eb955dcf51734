#include "text.hpp"

#include <array>
#include <charconv>

namespace gradientflow {

std::string format_number(double value) {
  std::array<char, 32> text{};
  const auto result = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), result.ptr};
}

}  // namespace gradientflow

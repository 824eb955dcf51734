// Random bits that cannot be guessed.
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace gradientflow::transport {

using RandomBits = std::array<std::byte, 32>;

// Throws Error(system).
[[nodiscard]] RandomBits random_bits();
[[nodiscard]] std::string random_hex();  // 64 hexadecimal digits

}  // namespace gradientflow::transport

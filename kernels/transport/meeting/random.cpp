#include "random.hpp"

#include <sys/random.h>

#include <cerrno>

#include "../../base/error.hpp"

namespace gradientflow::transport {

RandomBits random_bits() {
  RandomBits bits{};
  for (std::size_t done = 0; done < bits.size();) {
    const ssize_t count = getrandom(bits.data() + done, bits.size() - done, 0);
    if (count < 0 && errno != EINTR) {
      throw system_error("cannot get random bits", errno);
    }
    done += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  return bits;
}

std::string random_hex() {
  constexpr const char* digits = "0123456789abcdef";
  std::string text;
  for (const std::byte each : random_bits()) {
    text += digits[std::to_integer<int>(each >> 4)];
    text += digits[std::to_integer<int>(each & std::byte{15})];
  }
  return text;
}

}  // namespace gradientflow::transport

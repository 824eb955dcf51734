#include "store.hpp"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "../../base/error.hpp"

namespace gradientflow::transport {

std::optional<std::string> Store::get(const std::string& key, const Until& until) {
  for (auto nap = std::chrono::milliseconds(1);; nap = std::min(2 * nap, Until::longest_nap)) {
    auto value = look(key, until);
    if (value || !until.sleep(nap)) {
      return value;
    }
  }
}

void check_key(const std::string& key) {
  if (key.empty() || key.size() > longest_key) {
    throw Error(ErrorKind::value, "a key of a store has 1 to " + std::to_string(longest_key) + " bytes, not " +
                                      std::to_string(key.size()));
  }
}

void check_value(const std::string& value) {
  if (value.size() > longest_value) {
    throw Error(ErrorKind::value, "a value of a store has at most " + std::to_string(longest_value) + " bytes, not " +
                                      std::to_string(value.size()));
  }
}

std::int64_t sum_of(const std::optional<std::string>& value, std::int64_t amount) {
  std::int64_t sum = 0;
  if (value) {
    const char* const last = value->data() + value->size();
    const auto [end, error] = std::from_chars(value->data(), last, sum);
    if (error != std::errc() || end != last) {
      throw Error(ErrorKind::value, "add needs a value that is a whole number, and this one is not");
    }
  }
  if (__builtin_add_overflow(sum, amount, &sum)) {
    throw Error(ErrorKind::value, "the sum is too large for 64 bits");
  }
  return sum;
}

}  // namespace gradientflow::transport

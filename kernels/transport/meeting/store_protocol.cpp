#include "store_protocol.hpp"

#include <algorithm>
#include <concepts>
#include <utility>

namespace gradientflow::transport {
namespace {

constexpr std::string_view mark_of_process = "GFhello\n";
constexpr std::string_view mark_of_store = "GFstore\n";
constexpr std::size_t greeting_bytes = 8 + 4 + 4;
constexpr std::size_t request_bytes = 4 + 4 + 4 + 4 + 8;
constexpr std::size_t answer_bytes = 4 + 4;

template <std::unsigned_integral Number>
void append(std::string& bytes, Number number) {
  for (std::size_t i = 0; i < sizeof number; ++i) {
    bytes += static_cast<char>(number >> (8 * i) & 0xff);
  }
}

// Reads a number; its bytes must be there.
template <std::unsigned_integral Number>
Number number_at(std::string_view bytes, std::size_t at) {
  Number number = 0;
  for (std::size_t i = 0; i < sizeof number; ++i) {
    number |= static_cast<Number>(static_cast<Number>(static_cast<unsigned char>(bytes[at + i])) << (8 * i));
  }
  return number;
}

std::uint32_t length(std::size_t size) { return static_cast<std::uint32_t>(size); }

template <class Message>
Parsed<Message> wrong() {
  return {Parsed<Message>::ParseStatus::wrong, {}, 0};
}

template <class Message>
Parsed<Message> incomplete(std::size_t needed) {
  return {Parsed<Message>::ParseStatus::incomplete, {}, needed};
}

template <class Message>
Parsed<Message> complete(Message message, std::size_t bytes) {
  return {Parsed<Message>::ParseStatus::complete, std::move(message), bytes};
}

bool is_marked(std::string_view bytes, std::string_view mark) {
  return bytes.substr(0, mark.size()) == mark.substr(0, std::min(bytes.size(), mark.size()));
}

}  // namespace

std::string encode(const Hello& hello) {
  std::string bytes(mark_of_process);
  append(bytes, hello.version);
  append(bytes, length(hello.token.size()));
  return bytes + hello.token;
}

Parsed<Hello> parse_hello(std::string_view bytes) {
  if (!is_marked(bytes, mark_of_process)) {
    return wrong<Hello>();
  }
  if (bytes.size() < greeting_bytes) {
    return incomplete<Hello>(greeting_bytes);
  }
  Hello hello{.version = number_at<std::uint32_t>(bytes, 8), .token = {}};
  if (hello.version != store_version) {
    return complete(std::move(hello), bytes.size());
  }
  const std::size_t token_bytes = number_at<std::uint32_t>(bytes, 12);
  if (token_bytes > longest_token) {
    return wrong<Hello>();
  }
  if (bytes.size() < greeting_bytes + token_bytes) {
    return incomplete<Hello>(greeting_bytes + token_bytes);
  }
  hello.token = bytes.substr(greeting_bytes, token_bytes);
  return complete(std::move(hello), greeting_bytes + token_bytes);
}

std::string encode(const Welcome& welcome) {
  std::string bytes(mark_of_store);
  append(bytes, welcome.version);
  append(bytes, static_cast<std::uint32_t>(welcome.admission));
  return bytes;
}

Parsed<Welcome> parse_welcome(std::string_view bytes) {
  if (!is_marked(bytes, mark_of_store)) {
    return wrong<Welcome>();
  }
  if (bytes.size() < greeting_bytes) {
    return incomplete<Welcome>(greeting_bytes);
  }
  const auto admission = number_at<std::uint32_t>(bytes, 12);
  if (admission > static_cast<std::uint32_t>(Admission::other_version)) {
    return wrong<Welcome>();
  }
  return complete(Welcome{number_at<std::uint32_t>(bytes, 8), static_cast<Admission>(admission)}, greeting_bytes);
}

// Encodes the kind and whether a value is expected, the lengths of key, value and expected value, the amount; then
// these three texts.
std::string encode(const StoreRequest& request) {
  std::string bytes;
  append(bytes, static_cast<std::uint32_t>(request.kind) | (request.expected ? 0x100U : 0U));
  append(bytes, length(request.key.size()));
  append(bytes, length(request.value.size()));
  append(bytes, length(request.expected ? request.expected->size() : 0));
  append(bytes, static_cast<std::uint64_t>(request.amount));
  return bytes + request.key + request.value + request.expected.value_or("");
}

Parsed<StoreRequest> parse_request(std::string_view bytes) {
  if (bytes.size() < request_bytes) {
    return incomplete<StoreRequest>(request_bytes);
  }
  const auto head = number_at<std::uint32_t>(bytes, 0);
  const std::size_t key = number_at<std::uint32_t>(bytes, 4);
  const std::size_t value = number_at<std::uint32_t>(bytes, 8);
  const std::size_t expected = number_at<std::uint32_t>(bytes, 12);
  const bool expects = (head & 0x100U) != 0;
  const bool is_known = (head & ~0x100U) <= static_cast<std::uint32_t>(StoreRequest::Kind::remove);
  if (!is_known || key == 0 || key > longest_key || value > longest_value || expected > longest_value ||
      (!expects && expected > 0)) {
    return wrong<StoreRequest>();
  }
  const std::size_t all = request_bytes + key + value + expected;
  if (bytes.size() < all) {
    return incomplete<StoreRequest>(all);
  }
  StoreRequest request{.kind = static_cast<StoreRequest::Kind>(head & 0xffU),
                       .key = std::string(bytes.substr(request_bytes, key)),
                       .value = std::string(bytes.substr(request_bytes + key, value)),
                       .expected = {},
                       .amount = static_cast<std::int64_t>(number_at<std::uint64_t>(bytes, 16))};
  if (expects) {
    request.expected = std::string(bytes.substr(request_bytes + key + value, expected));
  }
  return complete(std::move(request), all);
}

std::string encode_head(StoreAnswer::Kind kind, std::size_t value_bytes) {
  std::string bytes;
  append(bytes, static_cast<std::uint32_t>(kind));
  append(bytes, length(value_bytes));
  return bytes;
}

Parsed<StoreAnswer> parse_answer(std::string_view bytes) {
  if (bytes.size() < answer_bytes) {
    return incomplete<StoreAnswer>(answer_bytes);
  }
  const auto kind = number_at<std::uint32_t>(bytes, 0);
  const std::size_t value = number_at<std::uint32_t>(bytes, 4);
  if (kind > static_cast<std::uint32_t>(StoreAnswer::Kind::refusal) || value > longest_value) {
    return wrong<StoreAnswer>();
  }
  if (bytes.size() < answer_bytes + value) {
    return incomplete<StoreAnswer>(answer_bytes + value);
  }
  return complete(StoreAnswer{static_cast<StoreAnswer::Kind>(kind), std::string(bytes.substr(answer_bytes, value))},
                  answer_bytes + value);
}

bool same_token(std::string_view one, std::string_view other) noexcept {
  unsigned char difference = one.size() == other.size() ? 0 : 1;
  for (std::size_t i = 0; i < one.size(); ++i) {
    const auto theirs = static_cast<unsigned char>(other.empty() ? 0 : other[i % other.size()]);
    difference |= static_cast<unsigned char>(static_cast<unsigned char>(one[i]) ^ theirs);
    __asm__ volatile("" : "+r"(difference));
  }
  return difference == 0;
}

}  // namespace gradientflow::transport

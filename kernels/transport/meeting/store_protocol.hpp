// Messages between a process and a store over TCP, as bytes. Each side of a connection sends a greeting; then each
// request has one answer, in turn. Numbers are little-endian.
//
// The first twelve bytes of a greeting, the mark and the version, stay as they are in all versions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "store.hpp"

namespace gradientflow::transport {

inline constexpr std::uint32_t store_version = 1;
inline constexpr std::size_t longest_token = 1024;

// Greeting of a process. With another version, only the version is known.
struct Hello {
  std::uint32_t version = store_version;
  std::string token;
};

enum class Admission : std::uint32_t { granted, other_token, other_version };

// Greeting of a store.
struct Welcome {
  std::uint32_t version = store_version;
  Admission admission = Admission::granted;
};

struct StoreRequest {
  enum class Kind : std::uint8_t { set, get, look, add, compare_set, remove };
  Kind kind = Kind::set;
  std::string key;
  std::string value;                    // value to set, for set and compare_set
  std::optional<std::string> expected;  // expected value, for compare_set
  std::int64_t amount = 0;              // number to add, for add
};

// Answer of a store. The `value` of a refusal is a sentence.
struct StoreAnswer {
  enum class Kind : std::uint32_t { value, nothing, refusal };
  Kind kind = Kind::value;
  std::string value;
};

// Message at the beginning of received bytes.
template <class Message>
struct Parsed {
  enum class ParseStatus : std::uint8_t { incomplete, complete, wrong };
  ParseStatus state = ParseStatus::incomplete;
  Message message = {};
  std::size_t bytes = 0;  // size of the message; where it is incomplete, the least size that it needs
};

[[nodiscard]] std::string encode(const Hello& hello);
[[nodiscard]] std::string encode(const Welcome& welcome);
[[nodiscard]] std::string encode(const StoreRequest& request);
[[nodiscard]] std::string encode_head(StoreAnswer::Kind kind, std::size_t value_bytes);  // the value follows

[[nodiscard]] Parsed<Hello> parse_hello(std::string_view bytes);
[[nodiscard]] Parsed<Welcome> parse_welcome(std::string_view bytes);
[[nodiscard]] Parsed<StoreRequest> parse_request(std::string_view bytes);
[[nodiscard]] Parsed<StoreAnswer> parse_answer(std::string_view bytes);

// Compares tokens, in a time that does not depend on where they differ.
[[nodiscard]] bool same_token(std::string_view one, std::string_view other) noexcept;

}  // namespace gradientflow::transport

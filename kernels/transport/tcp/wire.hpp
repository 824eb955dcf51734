// Format of a connection: first a greeting, then headers, some of which are followed by data. All input is checked
// before it is used.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "network.hpp"

namespace gradientflow::transport::tcp {

static_assert(std::endian::native == std::endian::little, "numbers travel as they lie in memory");

// A message of up to `largest_whole` bytes travels with its header, if its sender has enough credit from the receiver.
// Any other message is announced, and its receiver fetches it in pieces once there is memory for it.
inline constexpr std::size_t largest_whole = std::size_t{1} << 20;
inline constexpr std::size_t largest_piece = std::size_t{256} << 10;

// Bytes that a process may send to another without knowing that there is memory for them. Even an empty message costs
// the memory that keeps it.
inline constexpr std::size_t credit_of_a_peer = std::size_t{16} << 20;
inline constexpr std::size_t cost_of_keeping = 128;

struct Header {
  enum class Kind : std::uint8_t {
    message,    // `bytes` bytes follow
    announced,  // a message of `bytes` bytes, known to its sender by `number`
    fetch,      // the announced message `number` is to be sent
    dropped,    // the announced message `number` is not wanted
    piece,      // the next `bytes` bytes of the fetched message `number` follow
    withdrawn,  // the fetched message `number` does not come: its sender has given it up
    credit,     // `bytes` bytes of messages have left the memory of their receiver
    left,       // nothing more comes: the process leaves in good order
    excluded,   // answers the greeting of a rank that has been taken for dead
  };

  Kind kind = Kind::message;
  std::uint8_t magic = 0xf1;
  std::uint16_t unused = 0;
  std::int32_t tag = 0;
  std::uint64_t group = 0;
  std::uint64_t bytes = 0;
  std::uint64_t number = 0;

  // Reports whether a peer of this version could have sent this header.
  [[nodiscard]] bool is_valid() const noexcept;
};
static_assert(sizeof(Header) == 32);

struct Greeting {
  enum class Purpose : std::uint8_t {
    connect,  // messages follow
    exclude,  // nothing follows: `from` has taken `to` for dead
  };

  std::array<char, 6> magic = {'G', 'F', 'L', 'O', 'W', '\n'};
  std::uint8_t version = 2;
  Purpose purpose = Purpose::connect;
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  Token token{};

  // Reports whether this greeting goes from another rank, below `size`, to rank `rank`, with the expected token. The
  // duration of this check does not tell how much of the token was right.
  [[nodiscard]] bool is_valid(int rank, int size, const Token& expected) const noexcept;
};
static_assert(sizeof(Greeting) == 48);

}  // namespace gradientflow::transport::tcp

#include "wire.hpp"

namespace gradientflow::transport::tcp {

bool Header::is_valid() const noexcept {
  if (magic != Header{}.magic || unused != 0) {
    return false;
  }
  constexpr std::uint64_t largest = std::uint64_t{1} << 60;
  switch (kind) {
    case Kind::message:
      return tag >= 0 && bytes <= largest_whole;
    case Kind::announced:
      return tag >= 0 && bytes <= largest;
    case Kind::piece:
      return bytes > 0 && bytes <= largest_piece;
    case Kind::credit:
      return bytes <= largest;
    case Kind::fetch:
    case Kind::dropped:
    case Kind::withdrawn:
    case Kind::left:
    case Kind::excluded:
      return bytes == 0;
  }
  return false;
}

bool Greeting::is_valid(int rank, int size, const Token& expected) const noexcept {
  unsigned differing = 0;
  for (std::size_t i = 0; i < token.size(); ++i) {
    differing |= std::to_integer<unsigned>(token[i] ^ expected[i]);
  }
  return differing == 0 && magic == Greeting{}.magic && version == Greeting{}.version &&
         (purpose == Purpose::connect || purpose == Purpose::exclude) && to == static_cast<std::uint32_t>(rank) &&
         from < static_cast<std::uint32_t>(size) && from != to;
}

}  // namespace gradientflow::transport::tcp

// What one rank knows of the life of another.
#pragma once

#include <cstdint>
#include <string>

namespace gradientflow::transport {

// The later ones outweigh the earlier ones.
enum class Standing : std::uint8_t {
  alive,   // as far as anybody knows
  silent,  // nothing can be exchanged with it; it may live
  left,    // it has closed the communicator, and its process may live
  gone,    // its process has ended
  apart,   // it lives, and has taken another rank for dead
};

struct Sign {
  int rank;
  Standing standing;
  std::string why;  // "has died: ..."
};

}  // namespace gradientflow::transport

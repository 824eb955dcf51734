// Liveness of a rank, as another rank sees it.
#pragma once

#include <cstdint>
#include <string>

namespace gradientflow::transport {

// State of a rank. Later values outweigh earlier ones.
enum class Liveness : std::uint8_t {
  alive,        // alive, as far as is known
  silent,       // no message can be exchanged with it; its process may live
  left,         // the rank has closed the communicator, and its process may live
  dead,         // its process has ended
  excluded_us,  // the process lives, and has taken another rank for dead
};

struct Sign {
  int rank;
  Liveness liveness;
  std::string why;  // "has died: ..."
};

}  // namespace gradientflow::transport

#include "host.hpp"

#include <unistd.h>

#include <array>

namespace gradientflow {

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

}  // namespace gradientflow

#include "waits.hpp"

#include <cstdlib>

namespace gradientflow {

double Wait::seconds() const {
  static const double factor = [] {
    const char* const text = std::getenv("GRADIENTFLOW_PATIENCE");
    const double read = text == nullptr ? 0.0 : std::strtod(text, nullptr);
    return read > 0.0 && read < 1000.0 ? read : 1.0;
  }();
  return factor * seconds_;
}

std::chrono::steady_clock::duration Wait::time() const {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds()));
}

}  // namespace gradientflow

#include "version.hpp"

namespace gradientflow {

const char* library_version() { return GRADIENTFLOW_VERSION; }

}  // namespace gradientflow

#include "error.hpp"

#include <system_error>

namespace gradientflow {

Error system_error(const std::string& what, int code) {
  return {ErrorKind::system, what + ": " + std::generic_category().message(code), code};
}

}  // namespace gradientflow

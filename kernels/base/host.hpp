// The name of this host, for people.
#pragma once

#include <string>

namespace gradientflow {

[[nodiscard]] std::string host_name();

}  // namespace gradientflow

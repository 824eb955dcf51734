// The name of this host, for messages to users.
#pragma once

#include <string>

namespace gradientflow {

[[nodiscard]] std::string host_name();

}  // namespace gradientflow

// Check that this host can connect to other hosts: firewalls may let only MPI's messages through.
#pragma once

#include <string>
#include <vector>

#include "until.hpp"

namespace gradientflow::transport {

// Connects to all these addresses at once, and hangs up. Returns the failure, "could not connect to 10.0.0.2:41234
// within 5 s"; empty if there is none.
[[nodiscard]] std::string find_unreached(const std::vector<std::string>& addresses, const Until& until);

}  // namespace gradientflow::transport

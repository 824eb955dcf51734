// Network devices used by MPI libraries and not by our own connections.
#pragma once

#include <string>
#include <vector>

namespace gradientflow::transport {

// Folder in which the system describes devices by class.
inline constexpr const char* device_classes = "/sys/class";

// Returns the names of active RDMA devices: InfiniBand, RoCE, EFA, Omni-Path, Slingshot.
[[nodiscard]] std::vector<std::string> rdma_devices(const std::string& classes = device_classes);

}  // namespace gradientflow::transport

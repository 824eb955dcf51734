// Network devices that an MPI library uses and connections of our own do not.
#pragma once

#include <string>
#include <vector>

namespace gradientflow::transport {

// Where the system describes devices by class.
inline constexpr const char* device_classes = "/sys/class";

// The names of those on which messages can pass: InfiniBand, RoCE, EFA, Omni-Path, Slingshot.
[[nodiscard]] std::vector<std::string> rdma_devices(const std::string& classes = device_classes);

}  // namespace gradientflow::transport

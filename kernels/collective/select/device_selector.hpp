// Selection of the path of a call on CUDA devices. Pure: the same choice on every rank.
//
//   alone              one rank: a copy at most
//   device_memory      inside a node: the tensors lie in device memory that all ranks map; one pass, no copy
//   device_staged      the same with ordinary arrays, through a slot of such memory
//   nccl               NCCL's own collectives
//   nccl_hierarchical  NCCL inside the nodes, and among one rank of each (GradientFlow paper, section 2.4: NCCL-H)
//   through_host       pieces, through pinned memory and the collectives of the host
#pragma once

#include <string>
#include <string_view>

#include "../../base/config.hpp"
#include "selector.hpp"

namespace gradientflow::collective {

enum class DevicePath { alone, device_memory, device_staged, nccl, nccl_hierarchical, through_host };
[[nodiscard]] std::string_view name_of(DevicePath path);

struct DeviceChoice {
  DevicePath path;
  const char* reason;
};

struct DeviceSituation {
  Situation call;        // its `in_node_memory` means memory of the devices
  bool shares_device;    // two ranks have the same device, which NCCL refuses
  std::string no_nccl;   // reason why NCCL is not available; empty if it is available
  std::string no_peers;  // reason why ranks cannot map each other's memory; empty if they can
};

// Throws Error(value) if the requested algorithm does not support the call: an algorithm is never replaced silently.
[[nodiscard]] DeviceChoice select_on_device(const DeviceSituation& situation, const Config& config);

}  // namespace gradientflow::collective

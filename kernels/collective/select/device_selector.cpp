#include "device_selector.hpp"

#include <array>

#include "../../base/error.hpp"

namespace gradientflow::collective {
namespace {

using transport::Algorithm;

constexpr std::array<std::string_view, 6> paths = {"alone", "device_memory",     "device_staged",
                                                   "nccl",  "nccl_hierarchical", "through_host"};

[[noreturn]] void refuse(const DeviceSituation& s, const std::string& why) {
  throw Error(ErrorKind::value,
              "algorithm '" + std::string(name_of(s.call.algorithm)) + "' cannot serve CUDA tensors here: " + why);
}

DeviceChoice choose_in_device_memory(const DeviceSituation& s, const char* reason) {
  return {s.call.in_node_memory ? DevicePath::device_memory : DevicePath::device_staged, reason};
}

DeviceChoice choose(const DeviceSituation& s, const Config& config) {
  if (s.no_peers.empty() && (s.shares_device || !s.no_nccl.empty())) {
    return choose_in_device_memory(s, "the ranks map each other's memory, and there is no NCCL for them");
  }
  if (s.no_peers.empty() && s.call.bytes <= config.peer_bytes) {
    return choose_in_device_memory(s, "small (peer_bytes)");
  }
  if (s.no_nccl.empty()) {
    return {DevicePath::nccl, "there is NCCL"};
  }
  return {DevicePath::through_host, "no NCCL, and the devices cannot reach each other"};
}

}  // namespace

std::string_view name_of(DevicePath path) { return paths.at(static_cast<std::size_t>(path)); }

DeviceChoice select_on_device(const DeviceSituation& s, const Config& config) {
  constexpr const char* asked = "asked for";
  switch (s.call.algorithm) {
    case Algorithm::automatic:
      return s.call.ranks == 1 ? DeviceChoice{DevicePath::alone, "one rank"} : choose(s, config);
    case Algorithm::nccl:
      if (!s.no_nccl.empty()) {
        refuse(s, s.no_nccl);
      }
      return {DevicePath::nccl, asked};
    case Algorithm::hierarchical:
      static_cast<void>(select(s.call, config));  // throws unless the algorithm supports the call
      if (s.call.ranks == 1) {
        return {DevicePath::alone, "one rank"};
      }
      if (s.no_nccl.empty()) {
        return {DevicePath::nccl_hierarchical, asked};
      }
      return {DevicePath::through_host, "no NCCL: the hosts' own hierarchical allreduce"};
    case Algorithm::shared:
      static_cast<void>(select(s.call, config));
      if (s.call.ranks == 1) {
        return {DevicePath::alone, "one rank"};
      }
      if (!s.no_peers.empty()) {
        refuse(s, s.no_peers);
      }
      return choose_in_device_memory(s, asked);
    case Algorithm::ring:
    case Algorithm::hierarchical_lanes:
    case Algorithm::recursive_doubling:
    case Algorithm::mpi:
      static_cast<void>(select(s.call, config));
      return s.call.ranks == 1 ? DeviceChoice{DevicePath::alone, "one rank"}
                               : DeviceChoice{DevicePath::through_host, asked};
  }
  throw Error(ErrorKind::internal, "unknown algorithm");
}

}  // namespace gradientflow::collective

#include "device_selector.hpp"

#include "../../base/error.hpp"

namespace gradientflow::collective {
namespace {

using transport::Algorithm;

[[noreturn]] void refuse(const DeviceSituation& s, const std::string& why) {
  throw Error(ErrorKind::value,
              "algorithm '" + std::string(name_of(s.call.algorithm)) + "' cannot serve CUDA tensors here: " + why);
}

Choice choose_in_device_memory(const DeviceSituation& s, const char* reason) {
  return {s.call.in_node_memory ? Path::device_memory : Path::device_staged, reason};
}

Choice choose(const DeviceSituation& s, const Config& config) {
  if (s.no_peers.empty() && (s.shares_device || !s.no_nccl.empty())) {
    return choose_in_device_memory(s, "the ranks map each other's memory, and there is no NCCL for them");
  }
  if (s.no_peers.empty() && s.call.bytes <= config.peer_bytes) {
    return choose_in_device_memory(s, "small (peer_bytes)");
  }
  if (s.no_nccl.empty()) {
    return {Path::nccl, "there is NCCL"};
  }
  return {Path::through_host, "no NCCL, and the devices cannot reach each other"};
}

}  // namespace

Choice select_on_device(const DeviceSituation& s, const Config& config) {
  constexpr const char* asked = "asked for";
  switch (s.call.algorithm) {
    case Algorithm::automatic:
      return s.call.ranks == 1 ? Choice{Path::alone, "one rank"} : choose(s, config);
    case Algorithm::nccl:
      if (!s.no_nccl.empty()) {
        refuse(s, s.no_nccl);
      }
      return {Path::nccl, asked};
    case Algorithm::hierarchical:
      static_cast<void>(select(s.call, config));  // throws if the algorithm does not support the call
      if (s.call.ranks == 1) {
        return {Path::alone, "one rank"};
      }
      if (s.no_nccl.empty()) {
        return {Path::nccl_hierarchical, asked};
      }
      return {Path::through_host, "no NCCL: the hosts' own hierarchical allreduce"};
    case Algorithm::shared:
      static_cast<void>(select(s.call, config));
      if (s.call.ranks == 1) {
        return {Path::alone, "one rank"};
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
      return s.call.ranks == 1 ? Choice{Path::alone, "one rank"} : Choice{Path::through_host, asked};
  }
  throw Error(ErrorKind::internal, "unknown algorithm");
}

}  // namespace gradientflow::collective

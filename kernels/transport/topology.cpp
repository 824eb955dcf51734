#include "topology.hpp"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <map>

namespace gradientflow::transport {
std::size_t host_key() {
  std::string identity;
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::getline(boot, identity);
  utsname host{};
  uname(&host);
  identity += '/';
  identity += static_cast<const char*>(host.nodename);
  std::array<char, 64> pid_namespace{};
  if (readlink("/proc/self/ns/pid", pid_namespace.data(), pid_namespace.size() - 1) > 0) {
    identity += '/';
    identity += pid_namespace.data();
  }
  identity += '/' + std::to_string(geteuid());
  return std::hash<std::string>{}(identity);
}

int Topology::local_rank() const {
  const auto& ranks = local();
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

Topology group_ranks(const std::vector<std::size_t>& host_keys, int rank, int node_size) {
  Topology topology;
  topology.rank = rank;
  std::map<std::size_t, int> open_node;  // host key -> the node that its next rank joins
  for (std::size_t r = 0; r < host_keys.size(); ++r) {
    const auto found = open_node.find(host_keys[r]);
    const bool full =
        found != open_node.end() && node_size > 0 &&
        topology.members[static_cast<std::size_t>(found->second)].size() == static_cast<std::size_t>(node_size);
    if (found == open_node.end() || full) {
      open_node[host_keys[r]] = topology.nodes();
      topology.members.emplace_back();
    }
    const int node = open_node[host_keys[r]];
    topology.members[static_cast<std::size_t>(node)].push_back(static_cast<int>(r));
    topology.node_of.push_back(node);
  }
  if (node_size > 0) {
    topology.remark = "GRADIENTFLOW_NODE_SIZE=" + std::to_string(node_size) + " cuts the hosts into nodes";
  }
  return topology;
}

Topology isolate_ranks(const Topology& topology, const std::string& remark) {
  Topology isolated;
  isolated.rank = topology.rank;
  isolated.pids = topology.pids;
  isolated.job_ranks = topology.job_ranks;
  isolated.remark = remark;
  for (std::size_t r = 0; r < topology.node_of.size(); ++r) {
    isolated.node_of.push_back(static_cast<int>(r));
    isolated.members.push_back({static_cast<int>(r)});
  }
  return isolated;
}

}  // namespace gradientflow::transport

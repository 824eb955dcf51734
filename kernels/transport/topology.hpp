// Nodes: groups of ranks that can map each other's memory.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

namespace gradientflow::transport {

// The ranks of a communicator, grouped into nodes. Nodes are numbered in the order of their lowest rank. The ranks of a
// node ascend; the first is its leader.
struct Topology {
  int rank = 0;
  std::vector<int> node_of;               // node of each rank
  std::vector<std::vector<int>> members;  // ranks of each node
  std::vector<pid_t> pids;                // process of each rank of this host; 0 for ranks of other hosts
  std::vector<int> job_ranks;             // rank of each rank in the job
  std::string remark;                     // reason why nodes differ from hosts, if they do

  [[nodiscard]] int nodes() const { return static_cast<int>(members.size()); }
  [[nodiscard]] int node() const { return node_of[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const std::vector<int>& local() const { return members[static_cast<std::size_t>(node())]; }
  [[nodiscard]] int local_rank() const;
};

// Returns a key of this host. Ranks with equal keys run on one host (boot, host name and PID namespace), as one user,
// and see each other under /proc.
[[nodiscard]] std::size_t host_key();

// Groups ranks with equal keys, and cuts each group into nodes of `node_size` ranks (0: not cut). Pure. `pids` and
// `job_ranks` are left empty.
[[nodiscard]] Topology group_ranks(const std::vector<std::size_t>& host_keys, int rank, int node_size);

// Returns the same ranks, each a node of its own, for hosts that do not let processes share memory.
[[nodiscard]] Topology isolate_ranks(const Topology& topology, const std::string& remark);

}  // namespace gradientflow::transport

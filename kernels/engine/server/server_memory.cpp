#include "server_memory.hpp"

#include <algorithm>
#include <utility>

namespace gradientflow::engine {

int ServerRoles::server_at(int rank) const {
  const auto found = std::find(servers.begin(), servers.end(), rank);
  return found == servers.end() ? -1 : static_cast<int>(found - servers.begin());
}

std::size_t ServerMemory::version_bytes(std::size_t server) const {
  const std::size_t rounded = wire_ == DType::float32 ? 0 : size_of(wire_);
  return shard_sizes_[server] * (sizeof(float) + rounded);
}

void ServerMemory::provide_version(std::size_t server, std::size_t version) const {
  if (version >= ready_versions) {
    on_demand_->provide(reinterpret_cast<const std::byte*>(weights(server, version)), version_bytes(server));
  }
}

void ServerMemory::provide_pull_buffer(int worker) const {
  if (!has_ready_pull_buffers_) {
    on_demand_->provide(pull_buffer(worker), pull_buffer_bytes_);
  }
}

// Lays out the memory of the ranks contiguously in the node's segment, across the borders of its equal parts.
ServerMemory::ServerMemory(Communicator& communicator, const ServerLayout& layout, const ServerRoles& roles, DType wire)
    : wire_(wire),
      slot_bytes_(layout.size() * size_of(wire)),
      pull_buffer_bytes_(layout.size() * sizeof(float)),
      words_bytes_(static_cast<std::size_t>(roles.workers) * sizeof(ServerWord)),
      slots_(static_cast<std::size_t>(roles.workers)),
      pull_buffers_(slots_.size()),
      words_(roles.servers.size()),
      further_versions_(words_.size()) {
  for (std::size_t s = 0; s < layout.servers(); ++s) {
    shard_sizes_.push_back(layout.shard_size(s));
  }
  const transport::Topology& topology = communicator.group().topology();
  struct Bytes {
    std::size_t slots = 0;
    std::size_t pull_buffer = 0;
    std::size_t words = 0;
    std::size_t versions = 0;
    std::size_t further_pull_buffer = 0;
    std::size_t further_versions = 0;
    [[nodiscard]] std::size_t now() const { return slots + pull_buffer + words + versions; }
    [[nodiscard]] std::size_t on_demand() const { return further_pull_buffer + further_versions; }
  };
  const auto versions_of = [&](const std::vector<int>& members) {
    return 2 + static_cast<std::size_t>(
                   std::count_if(members.begin(), members.end(), [&](int rank) { return rank < roles.workers; }));
  };
  const auto has_all_servers = [&](const std::vector<int>& members) {
    return std::all_of(roles.servers.begin(), roles.servers.end(),
                       [&](int rank) { return std::find(members.begin(), members.end(), rank) != members.end(); });
  };
  const auto bytes_of = [&](int rank, const std::vector<int>& members) {
    Bytes bytes;
    if (rank < roles.workers) {
      bytes.slots = 2 * slot_bytes_;
      if (!has_all_servers(members)) {
        bytes.pull_buffer = pull_buffer_bytes_;
      } else if (roles.servers.size() > 1) {
        bytes.further_pull_buffer = pull_buffer_bytes_;
      }
    }
    if (const int server = roles.server_at(rank); server >= 0) {
      const std::size_t version = version_bytes(static_cast<std::size_t>(server));
      const std::size_t versions = versions_of(members);
      bytes.words = words_bytes_;
      bytes.versions = std::min(versions, ready_versions) * version;
      bytes.further_versions = (std::max(versions, ready_versions) - ready_versions) * version;
    }
    return bytes;
  };
  const auto part_of = [&](const auto& bytes) {
    std::size_t part = 0;
    for (const auto& members : topology.members) {
      std::size_t total = 0;
      for (const int rank : members) {
        total += bytes(bytes_of(rank, members));
      }
      part = std::max(part, (total / members.size() + 64) / 64 * 64);
    }
    return part;
  };
  const auto now = communicator.allocate(part_of([](const Bytes& bytes) { return bytes.now(); }));
  on_demand_ =
      communicator.allocate(part_of([](const Bytes& bytes) { return bytes.on_demand(); }), transport::Pages::on_demand);
  owner_ = std::make_shared<std::pair<std::shared_ptr<transport::Segment>, std::shared_ptr<transport::Segment>>>(
      now, on_demand_);
  const auto& here = topology.local();
  versions_ = versions_of(here);
  has_ready_pull_buffers_ = !has_all_servers(here);
  here_.assign(topology.node_of.size(), false);
  std::byte* at = now->part(0);
  std::byte* further = on_demand_->part(0);
  for (const int rank : here) {
    here_[static_cast<std::size_t>(rank)] = true;
    const Bytes bytes = bytes_of(rank, here);
    if (rank < roles.workers) {
      slots_[static_cast<std::size_t>(rank)] = at;
      pull_buffers_[static_cast<std::size_t>(rank)] = has_ready_pull_buffers_ ? at + bytes.slots : further;
    }
    if (const int server = roles.server_at(rank); server >= 0) {
      words_[static_cast<std::size_t>(server)] = at + bytes.slots + bytes.pull_buffer;
      further_versions_[static_cast<std::size_t>(server)] = further + bytes.further_pull_buffer;
    }
    at += bytes.now();
    further += bytes.on_demand();
  }
}

}  // namespace gradientflow::engine

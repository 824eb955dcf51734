#include "server_memory.hpp"

#include <algorithm>

namespace gradientflow::engine {

int ServerRoles::server_at(int rank) const {
  const auto found = std::find(servers.begin(), servers.end(), rank);
  return found == servers.end() ? -1 : static_cast<int>(found - servers.begin());
}

std::size_t ServerMemory::version_bytes(std::size_t server) const {
  const std::size_t rounded = wire_ == DType::float32 ? 0 : size_of(wire_);
  return shard_sizes_[server] * (sizeof(float) + rounded);
}

// What each rank needs lies in the node's memory one after the other, across the equal parts of the ranks.
ServerMemory::ServerMemory(Communicator& communicator, const ServerLayout& layout, const ServerRoles& roles, DType wire)
    : wire_(wire),
      slot_bytes_(layout.size() * size_of(wire)),
      words_bytes_(static_cast<std::size_t>(roles.workers) * sizeof(ServerWord)),
      of_worker_(static_cast<std::size_t>(roles.workers)),
      of_server_(roles.servers.size()) {
  std::size_t place = 0;
  for (std::size_t s = 0; s < layout.servers(); ++s) {
    place_offsets_.push_back(place);
    shard_sizes_.push_back(layout.shard_size(s));
    place += layout.shard_size(s) * sizeof(float);
  }
  const transport::Topology& topology = communicator.group().topology();
  const auto bytes_of = [&](int rank) {
    const int server = roles.server_at(rank);
    const std::size_t as_worker = rank < roles.workers ? 2 * slot_bytes_ + place : 0;
    return as_worker + (server < 0 ? 0 : words_bytes_ + versions * version_bytes(static_cast<std::size_t>(server)));
  };
  std::size_t part = 64;
  for (const auto& members : topology.members) {
    std::size_t total = 0;
    for (const int rank : members) {
      total += bytes_of(rank);
    }
    part = std::max(part, (total / members.size() + 1 + 63) / 64 * 64);
  }
  segment_ = communicator.allocate(part);
  here_.assign(topology.node_of.size(), false);
  std::byte* at = segment_->part(0);
  for (const int rank : topology.local()) {
    here_[static_cast<std::size_t>(rank)] = true;
    if (const int server = roles.server_at(rank); server >= 0) {
      of_server_[static_cast<std::size_t>(server)] = at;
    }
    at += bytes_of(rank);
    if (rank < roles.workers) {
      of_worker_[static_cast<std::size_t>(rank)] = at - (2 * slot_bytes_ + place);
    }
  }
}

}  // namespace gradientflow::engine

// Shared memory of a parameter server on a node: gradients pushed and weights pulled by its workers, the weights of its
// servers, and atomic words by which they hand memory to each other. All ranks of a node map all of it.
//
// A worker has two slots for its pushes, used in turn, and one pull buffer, laid out as the flat vector, for tensors
// that are not contiguous in the memory of a single server of this node. A server has two more versions of its weights
// than the node has workers. A worker that pulls reads a version in place and holds a lease on it, one lease per server
// at a time. So a server always finds a version to write that is neither leased nor the present version. The first
// three versions have pages from the beginning: workers in step need no further versions. Further versions, and pull
// buffers that may never be used, get pages on first use.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "../calls/communicator.hpp"
#include "server_layout.hpp"

namespace gradientflow::engine {

// Roles of the ranks of a parameter server: workers are ranks 0, 1, ...
struct ServerRoles {
  int workers = 0;
  std::vector<int> servers;                     // rank of each server
  std::vector<int> copy_holders = {};           // server that keeps copies of each server; empty: no server does
  [[nodiscard]] int server_at(int rank) const;  // -1: none
};

// Words between one worker and one server.
struct alignas(64) ServerWord {
  std::atomic<std::uint64_t> applied;  // number of the worker's pushes that the server has applied or skipped
  std::atomic<std::uint64_t> lease;    // version that the worker holds, plus 1; 0: none
};

class ServerMemory {
 public:
  // Collective over the communicator.
  ServerMemory(Communicator& communicator, const ServerLayout& layout, const ServerRoles& roles, DType wire);

  [[nodiscard]] bool is_here(int rank) const { return here_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::size_t versions() const { return versions_; }

  // Returns the owner of the memory.
  [[nodiscard]] std::shared_ptr<const void> owner() const { return owner_; }

  // The functions below are for ranks of this node only.
  [[nodiscard]] std::byte* slot(int worker, std::uint64_t push) const {
    return slots_[static_cast<std::size_t>(worker)] + (push % 2) * slot_bytes_;
  }
  [[nodiscard]] std::size_t slot_bytes() const { return slot_bytes_; }
  // Returns memory for the weights that a worker pulls.
  [[nodiscard]] std::byte* pull_buffer(int worker) const { return pull_buffers_[static_cast<std::size_t>(worker)]; }
  [[nodiscard]] ServerWord& word(std::size_t server, int worker) const {
    return reinterpret_cast<ServerWord*>(words_[server])[worker];
  }
  [[nodiscard]] float* weights(std::size_t server, std::size_t version) const {
    std::byte* const at = version < ready_versions
                              ? words_[server] + words_bytes_ + version * version_bytes(server)
                              : further_versions_[server] + (version - ready_versions) * version_bytes(server);
    return reinterpret_cast<float*>(at);
  }
  // Returns the weights in the wire's dtype: the same memory if that is float32.
  [[nodiscard]] std::byte* wire_weights(std::size_t server, std::size_t version) const {
    std::byte* const exact = reinterpret_cast<std::byte*>(weights(server, version));
    return wire_ == DType::float32 ? exact : exact + shard_sizes_[server] * sizeof(float);
  }

  // Allocate the pages of a version, or of a pull buffer, before its first use. Throw Error(memory).
  void provide_version(std::size_t server, std::size_t version) const;
  void provide_pull_buffer(int worker) const;

 private:
  static constexpr std::size_t ready_versions = 3;
  [[nodiscard]] std::size_t version_bytes(std::size_t server) const;

  std::vector<std::size_t> shard_sizes_;
  DType wire_;
  std::size_t slot_bytes_;
  std::size_t pull_buffer_bytes_;
  std::size_t words_bytes_;
  std::size_t versions_ = 0;
  bool has_ready_pull_buffers_ = false;
  std::vector<bool> here_;
  std::shared_ptr<transport::Segment> on_demand_;
  std::shared_ptr<const void> owner_;
  std::vector<std::byte*> slots_;
  std::vector<std::byte*> pull_buffers_;
  std::vector<std::byte*> words_;  // words of each server, followed by its first versions
  std::vector<std::byte*> further_versions_;
};

}  // namespace gradientflow::engine

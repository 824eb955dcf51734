// The memory of a parameter server inside a node: what its workers push and pull, the weights of its servers, and the
// words by which they hand memory to each other. All ranks of a node map all of it.
//
// A worker has two slots for what it pushes, used in turn, and one place, laid out as the tensors are, for weights that
// do not lie together in the memory of a server of this node. A server has two more versions of its weights than there
// are workers in the node. A worker that pulls reads a version in place, and holds it meanwhile by a lease. It holds
// one at a time, so a server always finds a version to write to that is neither the present one nor held. The first
// three versions have their pages from the beginning, which is all that workers in step ever need; further ones, and
// places that may never be used, get them as they are used.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "../calls/communicator.hpp"
#include "server_layout.hpp"

namespace gradientflow::engine {

// Who is who among the ranks of a parameter server: workers are ranks 0, 1, ...
struct ServerRoles {
  int workers = 0;
  std::vector<int> servers;                     // the rank of each
  [[nodiscard]] int server_at(int rank) const;  // -1: none
};

// Of one worker at one server.
struct alignas(64) ServerWord {
  std::atomic<std::uint64_t> applied;  // how many of the worker's pushes the server needs no more
  std::atomic<std::uint64_t> lease;    // the version that the worker holds, plus 1; 0: none
};

class ServerMemory {
 public:
  // Collective over the communicator.
  ServerMemory(Communicator& communicator, const ServerLayout& layout, const ServerRoles& roles, DType wire);

  [[nodiscard]] bool is_here(int rank) const { return here_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::size_t versions() const { return versions_; }

  // What keeps all of it.
  [[nodiscard]] std::shared_ptr<const void> owner() const { return owner_; }

  // All of ranks of this node.
  [[nodiscard]] std::byte* slot(int worker, std::uint64_t push) const {
    return slots_[static_cast<std::size_t>(worker)] + (push % 2) * slot_bytes_;
  }
  [[nodiscard]] std::size_t slot_bytes() const { return slot_bytes_; }
  // Of what a worker has pulled.
  [[nodiscard]] std::byte* place(int worker) const { return places_[static_cast<std::size_t>(worker)]; }
  [[nodiscard]] ServerWord& word(std::size_t server, int worker) const {
    return reinterpret_cast<ServerWord*>(words_[server])[worker];
  }
  [[nodiscard]] float* weights(std::size_t server, std::size_t version) const {
    std::byte* const at = version < ready_versions
                              ? words_[server] + words_bytes_ + version * version_bytes(server)
                              : further_versions_[server] + (version - ready_versions) * version_bytes(server);
    return reinterpret_cast<float*>(at);
  }
  // The weights as they travel: the same, unless they are rounded.
  [[nodiscard]] std::byte* travelling(std::size_t server, std::size_t version) const {
    std::byte* const exact = reinterpret_cast<std::byte*>(weights(server, version));
    return wire_ == DType::float32 ? exact : exact + shard_sizes_[server] * sizeof(float);
  }

  // Have the pages of a version, or of a worker's place, which is used for the first time. Throw Error(memory).
  void provide_version(std::size_t server, std::size_t version) const;
  void provide_place(int worker) const;

 private:
  static constexpr std::size_t ready_versions = 3;
  [[nodiscard]] std::size_t version_bytes(std::size_t server) const;

  std::vector<std::size_t> shard_sizes_;
  DType wire_;
  std::size_t slot_bytes_;
  std::size_t place_bytes_;
  std::size_t words_bytes_;
  std::size_t versions_ = 0;
  bool has_ready_places_ = false;
  std::vector<bool> here_;
  std::shared_ptr<transport::Segment> on_demand_;
  std::shared_ptr<const void> owner_;
  std::vector<std::byte*> slots_;
  std::vector<std::byte*> places_;
  std::vector<std::byte*> words_;  // then the first versions
  std::vector<std::byte*> further_versions_;
};

}  // namespace gradientflow::engine

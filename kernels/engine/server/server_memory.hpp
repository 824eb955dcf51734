// The memory of a parameter server inside a node: what its workers push and pull, the weights of its servers, and the
// words by which they hand memory to each other. All ranks of a node map all of it.
//
// A worker has two slots for what it pushes, used in turn, and one place for weights that it has pulled. A server has
// three versions of its weights: the present one, the next one, and one that a pull still reads. A worker that pulls
// reads the version in place, and holds it meanwhile by a lease; a server that needs the memory of a held version first
// moves what the worker holds to the worker's own place.
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
  enum Phase : std::uint64_t { none, held, reading, moving, moved };
  std::atomic<std::uint64_t> applied;  // how many of the worker's pushes the server needs no more
  std::atomic<std::uint64_t> lease;    // phase + 8 * version
};

class ServerMemory {
 public:
  static constexpr std::size_t versions = 3;

  // Collective over the communicator.
  ServerMemory(Communicator& communicator, const ServerLayout& layout, const ServerRoles& roles, DType wire);

  [[nodiscard]] const std::shared_ptr<transport::Segment>& segment() const { return segment_; }
  [[nodiscard]] bool is_here(int rank) const { return here_[static_cast<std::size_t>(rank)]; }

  // All of ranks of this node.
  [[nodiscard]] std::byte* slot(int worker, std::uint64_t push) const {
    return of_worker_[static_cast<std::size_t>(worker)] + (push % 2) * slot_bytes_;
  }
  // Where what a worker has pulled of a server's shard lies.
  [[nodiscard]] std::byte* place(int worker, std::size_t server) const {
    return of_worker_[static_cast<std::size_t>(worker)] + 2 * slot_bytes_ + place_offsets_[server];
  }
  [[nodiscard]] ServerWord& word(std::size_t server, int worker) const {
    return reinterpret_cast<ServerWord*>(of_server_[server])[worker];
  }
  [[nodiscard]] float* weights(std::size_t server, std::size_t version) const {
    return reinterpret_cast<float*>(of_server_[server] + words_bytes_ + version * version_bytes(server));
  }
  // The weights as they travel: the same, unless they are rounded.
  [[nodiscard]] std::byte* travelling(std::size_t server, std::size_t version) const {
    std::byte* const exact = reinterpret_cast<std::byte*>(weights(server, version));
    return wire_ == DType::float32 ? exact : exact + shard_sizes_[server] * sizeof(float);
  }

 private:
  [[nodiscard]] std::size_t version_bytes(std::size_t server) const;

  std::vector<std::size_t> shard_sizes_;
  DType wire_;
  std::size_t slot_bytes_;
  std::size_t words_bytes_;
  std::vector<std::size_t> place_offsets_;
  std::vector<bool> here_;
  std::shared_ptr<transport::Segment> segment_;
  std::vector<std::byte*> of_worker_;
  std::vector<std::byte*> of_server_;
};

}  // namespace gradientflow::engine

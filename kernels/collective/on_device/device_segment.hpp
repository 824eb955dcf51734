// Memory of the devices of a node: one part of equal size for every rank, which the others may map by CUDA's
// interprocess handles; and events that their streams may wait for.
//
// CUDA leaves undefined what happens where memory is freed that another process still maps. A segment is let go of at
// any time, on each rank for itself, and nobody waits for the others then. So what a rank has of it retires, in two
// steps, which are tried whenever a segment is made or let go of in this process:
//   1. what this rank put into streams, on parts of the others, is done: it closes these parts, and says so on a board
//      in memory of the host, which all ranks of the node map
//   2. all others have said so: it frees its own part
// Where a rank has died, the parts of the others stay until their processes end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "../../compute/cuda/owned.hpp"
#include "../../transport/node/node.hpp"

namespace gradientflow::collective {

// What a rank has of a segment.
struct DeviceShare {
  std::size_t rank = 0;  // in the node
  compute::cuda::DeviceMemory own = {};
  std::vector<std::byte*> parts = {};  // by local rank; nullptr where not mapped
  std::vector<compute::cuda::OwnedEvent> own_events = {};
  std::vector<std::vector<compute::cuda::OwnedEvent>> opened_events = {};  // by local rank; none of this rank's
  int device = 0;
  std::shared_ptr<transport::Segment> board = {};            // empty: no other rank maps it
  std::shared_ptr<compute::cuda::OwnedEvent> last_use = {};  // once it has happened, no work is under way
};

class DeviceSegment {
 public:
  // Memory that no other rank maps; `parts` has its address at `rank`.
  DeviceSegment(compute::cuda::DeviceMemory own, std::vector<std::byte*> parts, std::size_t rank, std::uint32_t id);

  // Zero-filled memory of the current devices, mapped by all ranks of the node, with as many events of each rank as are
  // asked for, two at most. `last_use` is recorded behind all work on it. Collective over the node. Throws, on all
  // ranks the same, Error(memory) where one has none, and Error(system) where one cannot map that of another.
  static std::shared_ptr<DeviceSegment> make(transport::Node& node, std::size_t bytes, std::uint32_t id,
                                             std::size_t events, std::shared_ptr<compute::cuda::OwnedEvent> last_use);

  DeviceSegment(const DeviceSegment&) = delete;
  DeviceSegment& operator=(const DeviceSegment&) = delete;
  ~DeviceSegment();

  [[nodiscard]] std::byte* part(int local_rank) const { return share().parts[static_cast<std::size_t>(local_rank)]; }
  [[nodiscard]] std::byte* mine() const { return share().own.data(); }
  [[nodiscard]] std::size_t bytes() const { return share().own.bytes(); }
  [[nodiscard]] std::uint32_t id() const { return id_; }
  [[nodiscard]] compute::cuda::Event event(int local_rank, std::size_t index) const {
    const auto rank = static_cast<std::size_t>(local_rank);
    return (rank == share().rank ? share().own_events : share().opened_events[rank])[index].get();
  }

 private:
  DeviceSegment(DeviceShare share, std::uint32_t id);
  [[nodiscard]] const DeviceShare& share() const { return share_.front(); }

  std::list<DeviceShare> share_;  // one, in a list so that retiring it needs no memory
  std::uint32_t id_;
};

// Goes on with what has retired. Waits for the device where it frees memory, never for another rank.
void free_retired_shares() noexcept;

}  // namespace gradientflow::collective

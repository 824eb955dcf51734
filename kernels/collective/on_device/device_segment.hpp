// A segment of device memory of a node: one part of equal size for every rank, which its peers may map by CUDA's
// interprocess handles, and events for which the peers' streams may wait.
//
// In CUDA it is undefined behavior to free memory that another process still maps. But each rank can release a segment
// at any time, without waiting for its peers. So a rank's share retires in two steps, which are tried whenever a
// segment is created or released in this process:
//   1. once this rank's work on the peers' parts is done, it closes these parts, and reports this on a board in host
//      memory, which all ranks of the node map
//   2. once all peers have reported so on the board, it frees its own part
// If a rank has died, the parts of its peers stay until their processes end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "../../compute/cuda/owned.hpp"
#include "../../transport/node/node.hpp"

namespace gradientflow::collective {

// A rank's share of a segment: its own part, the mapped parts of its peers, and events.
struct DeviceShare {
  std::size_t rank = 0;  // rank in the node
  compute::cuda::DeviceMemory own = {};
  std::vector<std::byte*> parts = {};  // address per local rank; nullptr if not mapped
  std::vector<compute::cuda::OwnedEvent> own_events = {};
  std::vector<std::vector<compute::cuda::OwnedEvent>> opened_events = {};  // events of each peer, by local rank
  int device = 0;
  std::shared_ptr<transport::Segment> board = {};            // empty: no other rank maps the segment
  std::shared_ptr<compute::cuda::OwnedEvent> last_use = {};  // event after all work on the segment
};

class DeviceSegment {
 public:
  // Takes memory that no other rank maps; `parts` has its address at `rank`.
  DeviceSegment(compute::cuda::DeviceMemory own, std::vector<std::byte*> parts, std::size_t rank, std::uint32_t id);

  // Makes zero-filled memory of the current devices, mapped by all ranks of the node, with `events` events per rank, at
  // most two. `last_use` is recorded behind all work on it. Collective over the node. Throws the same on all ranks:
  // Error(memory) if any lacks memory, Error(system) if any cannot map a peer's memory.
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

  std::list<DeviceShare> share_;  // exactly one share, in a list so that it retires without allocation
  std::uint32_t id_;
};

// Takes the next steps of retired shares. Waits for the device if it frees memory, never for another rank.
void free_retired_shares() noexcept;

}  // namespace gradientflow::collective

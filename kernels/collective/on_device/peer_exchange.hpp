// Collectives among the ranks of a node in device memory, which they map by CUDA's interprocess handles: the device
// form of one_pass.hpp and read_peers.hpp. They also serve ranks that share a device, which NCCL refuses.
//
// A meeting is a barrier of the ranks' streams. Each rank records an event in its stream, a barrier of the hosts makes
// sure that all have done so, and each rank's stream waits for the events of its peers. So a rank's work enqueued after
// the meeting runs after its peers' work enqueued before it. No host waits for a device.
//
// Tensors that lie in one segment are reduced in place, between two meetings:
//   meeting  the inputs are complete; rank r reduces slice r of all parts, in rank order, into all parts
//   meeting  all slices are written
// Other tensors pass in pieces through slots: every rank has one, with two halves that alternate.
//   in       every rank copies its input into its own slot
//   meeting  every rank reads its output from the slots of all; in a small allreduce every rank reduces all slices
//   meeting  only a large allreduce: rank r has reduced slice r in its slot, from which every rank copies it
// A rank writes to the same half again two pieces later. By then its stream has met its peers' streams for the piece in
// between, after the peers had enqueued their reads of that half.
//
// If a process dies while peers' streams wait for work of its device, these streams never continue: CUDA cannot end
// such a wait. The next call reports the dead rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../../compute/cuda/owned.hpp"
#include "../../transport/node/node.hpp"
#include "../call/call.hpp"
#include "../call/call_pieces.hpp"
#include "device_segment.hpp"

namespace gradientflow::collective {

class PeerExchange {
 public:
  // Serves the current device, like all functions of this class. Tests if the ranks of the node can access each other's
  // memory. Collective over the node. A failure of a rank's device becomes unavailable_reason(), the same on all ranks.
  // Throws Error if a rank is lost meanwhile.
  PeerExchange(transport::Node& node, std::size_t slot_bytes);
  PeerExchange(const PeerExchange&) = delete;
  PeerExchange& operator=(const PeerExchange&) = delete;
  ~PeerExchange() = default;

  [[nodiscard]] const std::string& unavailable_reason() const { return unavailable_reason_; }  // empty: they can

  // Allocates zero-filled memory for every rank, which all ranks map. Call it only if unavailable_reason() is empty.
  // Collective. Throws the same on all ranks: Error(memory) if any lacks memory, Error(system) if any cannot map a
  // peer's memory.
  std::shared_ptr<DeviceSegment> allocate(std::size_t bytes);

  // Returns the segment whose part of this rank contains `bytes` bytes at `address`, or nullptr.
  [[nodiscard]] std::shared_ptr<DeviceSegment> find(const void* address, std::size_t bytes) const;

  // Reduces tensors in place in `segment`, at byte offset `offsets[r]` of local rank r's part, after an agreement on
  // the call. All work is put into the call's stream, after earlier calls in any stream.
  void reduce_in_place(const Call& call, const DeviceSegment& segment, const std::vector<std::size_t>& offsets);

  // Makes any call through the slots.
  void exchange(const Call& call);

 private:
  template <class Work>
  void in_order(compute::cuda::Stream stream, Work work);
  [[nodiscard]] std::size_t find_unreadable_peer() const;
  void check_memory();
  void stream_barrier(compute::cuda::Stream stream);
  void pass(const Call& call, const CallPiece& piece);
  void reduce_piece(const Call& call, const CallPiece& piece);
  void copy_piece(const Call& call, const CallPiece& piece) const;
  void reduce(const Call& call, const Range& part, const std::vector<void*>& destinations) const;
  [[nodiscard]] std::byte* slot(std::size_t rank) const;

  transport::Node& node_;
  std::size_t ranks_;
  std::size_t rank_;
  std::string unavailable_reason_;
  std::size_t half_bytes_;
  std::size_t half_ = 0;                             // half of the slots in use
  std::size_t meetings_ = 0;                         // number of meetings so far
  std::shared_ptr<compute::cuda::OwnedEvent> last_;  // end of the last call
  std::shared_ptr<DeviceSegment> slots_;             // segment with two events of each rank, which alternate by meeting
  std::uint32_t made_ = 0;                           // id of the last segment
  mutable std::mutex mutex_;
  std::map<const std::byte*, std::weak_ptr<DeviceSegment>> segments_;  // segments by the address of this rank's part
};

}  // namespace gradientflow::collective

// Collectives among the ranks of a node in device memory, which they map by CUDA's interprocess handles: the device
// form of one_pass.hpp and read_peers.hpp. Also for ranks that share a device, which NCCL refuses.
//
// A meeting is a barrier of the ranks' streams: each rank records an event in its stream, a barrier of the hosts makes
// sure that all have, and each rank's stream waits for the events of the others. So a rank's work enqueued after the
// meeting runs after the others' work enqueued before it. No host waits for a device.
//
// Tensors that lie in one segment are reduced in place, between two meetings:
//   meeting  the inputs are complete; rank r reduces slice r of all parts, in rank order, into all parts
//   meeting  all slices are written
// Other tensors pass in pieces through slots: every rank has one, with two halves that alternate.
//   in       every rank copies its input into its own slot
//   meeting  every rank reads its output from the slots of all; of a small allreduce every rank reduces all slices
//   meeting  only a large allreduce: rank r has reduced slice r in its slot, from which every rank copies it
// A rank writes to the same half again at the next piece but one. By then its stream has met the others' for the piece
// in between, before which they had enqueued their reads of that half.
//
// If a process dies while streams of others wait for work of its device, these streams never go on: CUDA cannot end
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
  // On the current device, like everything else here. Finds out whether the ranks of the node can access each other's
  // memory. Collective over the node. A failure of one rank's device becomes the reason why they cannot, the same on
  // all ranks; throws Error if a rank is lost meanwhile.
  PeerExchange(transport::Node& node, std::size_t slot_bytes);
  PeerExchange(const PeerExchange&) = delete;
  PeerExchange& operator=(const PeerExchange&) = delete;
  ~PeerExchange() = default;

  [[nodiscard]] const std::string& unavailable_reason() const { return unavailable_reason_; }  // empty: they can

  // Zero-filled memory for every rank, which all of them map. Only if the ranks can access each other's memory.
  // Collective. Throws the same on all ranks: Error(memory) if one lacks memory, Error(system) if one cannot map that
  // of another.
  std::shared_ptr<DeviceSegment> allocate(std::size_t bytes);

  // The segment whose part of this rank has `bytes` bytes at `address`, or nullptr.
  [[nodiscard]] std::shared_ptr<DeviceSegment> find(const void* address, std::size_t bytes) const;

  // In-place allreduce of tensors in `segment`, at byte offset `offsets[r]` of the part of local rank r. All work is
  // put into the call's stream, after that of earlier calls in any stream. After an agreement on the call.
  void reduce_in_place(const Call& call, const DeviceSegment& segment, const std::vector<std::size_t>& offsets);

  // The same for any call, through the slots.
  void exchange(const Call& call);

 private:
  template <class Work>
  void in_order(compute::cuda::Stream stream, Work work);
  [[nodiscard]] std::size_t find_stranger() const;
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
  std::size_t half_ = 0;                             // of the slots: the one in use
  std::size_t meetings_ = 0;                         // number of meetings so far
  std::shared_ptr<compute::cuda::OwnedEvent> last_;  // the end of the last call
  std::shared_ptr<DeviceSegment> slots_;             // with two events of each rank, which alternate between meetings
  std::uint32_t made_ = 0;                           // id of the last segment
  mutable std::mutex mutex_;
  std::map<const std::byte*, std::weak_ptr<DeviceSegment>> segments_;  // by the start of this rank's part
};

}  // namespace gradientflow::collective

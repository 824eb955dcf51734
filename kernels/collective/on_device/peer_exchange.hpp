// Collectives among the ranks of a node in memory of their devices, which they map by CUDA's interprocess handles: the
// device form of one_pass.hpp and read_peers.hpp. Also for ranks that share a device, which NCCL refuses.
//
// The streams of the ranks meet: each rank records an event in its stream, the hosts meet, to know that all have, and
// each rank's stream waits for the events of the others. What a rank puts into its stream after that is done after what
// the others had put into theirs before. No host waits for a device.
//
// Tensors that lie in one segment are reduced where they are, in two meetings:
//   the values are there     rank r reduces slice r of all parts, in the order of the ranks, into all parts
//   the slices are written
// Other tensors pass in pieces through slots, of which every rank has one, and whose two halves serve in turn:
//   in       every rank copies what it puts in into its own slot
//   meeting  every rank takes what it needs from the slots of all; a small allreduce is taken whole by every rank
//   meeting  only a large allreduce: rank r has reduced slice r in its slot, and every rank takes it from there
// A rank writes to the half of a slot again at the next piece but one. By then its stream has met the others' for the
// piece between, and what they took from that half, they had put into their streams before.
//
// Where a process dies while others' streams wait for what its device was to do, these streams never go on: CUDA has
// no way to end such a wait. The next call says which rank has died.
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
  // On the current device, as everything else here. Finds out, together with the others, whether the ranks of the node
  // reach each other's memory. Collective over the node. What fails on one rank's device becomes `trouble`, on all
  // ranks the same; throws Error where a rank is lost meanwhile.
  PeerExchange(transport::Node& node, std::size_t slot_bytes);
  PeerExchange(const PeerExchange&) = delete;
  PeerExchange& operator=(const PeerExchange&) = delete;
  ~PeerExchange() = default;

  [[nodiscard]] const std::string& trouble() const { return trouble_; }  // empty: they do

  // Zero-filled memory for every rank, which all of them map. Only where the ranks reach each other. Collective.
  // Throws, on all ranks the same, Error(memory) where one has none, and Error(system) where one cannot map another's.
  std::shared_ptr<DeviceSegment> allocate(std::size_t bytes);

  // The segment that holds this rank's memory at `address`, if one does.
  [[nodiscard]] std::shared_ptr<DeviceSegment> find(const void* address, std::size_t bytes) const;

  // Allreduce in place of tensors that all lie in `segment`, `offsets` bytes into the part of each local rank. All work
  // is put into the call's stream, after that of earlier calls in whatever stream. After an agreement on the call.
  void reduce_in_place(const Call& call, const DeviceSegment& segment, const std::vector<std::size_t>& offsets);

  // Any call, through the slots. Likewise.
  void exchange(const Call& call);

 private:
  template <class Work>
  void in_order(compute::cuda::Stream stream, Work work);
  [[nodiscard]] std::size_t find_stranger() const;
  void check_memory();
  void meet(compute::cuda::Stream stream);
  void pass(const Call& call, const CallPiece& piece);
  void reduce_piece(const Call& call, const CallPiece& piece);
  void copy_piece(const Call& call, const CallPiece& piece) const;
  void reduce(const Call& call, const Range& part, const std::vector<void*>& destinations) const;
  [[nodiscard]] std::byte* slot(std::size_t rank) const;

  transport::Node& node_;
  std::size_t ranks_;
  std::size_t rank_;
  std::string trouble_;
  std::size_t half_bytes_;
  std::size_t half_ = 0;                             // of the slots, in use
  std::size_t meetings_ = 0;                         // so far
  std::shared_ptr<compute::cuda::OwnedEvent> last_;  // the end of the last call
  std::shared_ptr<DeviceSegment> slots_;             // with two events of each rank, for meetings in turn
  std::uint32_t made_ = 0;                           // segments
  mutable std::mutex mutex_;
  std::map<const std::byte*, std::weak_ptr<DeviceSegment>> segments_;  // by the start of this rank's part
};

}  // namespace gradientflow::collective

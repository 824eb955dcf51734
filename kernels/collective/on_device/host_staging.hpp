// Calls on tensors of CUDA devices through pinned memory and the collectives of the host, in pieces: while the host
// reduces one piece, the next is copied down to the host and the previous one up to the device.
//
// The pinned memory is node memory, so inside a node the hosts reduce it in one pass. Values that are rounded for the
// wire are rounded on the device before the copy down, and widened there after the copy up. Values that share a scale
// are rounded and widened by the hosts.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "../../compute/cuda/owned.hpp"
#include "../call/call_pieces.hpp"
#include "../group.hpp"

namespace gradientflow::collective {

class HostStaging {
 public:
  // Serves the current device. Collective. Throws Error(memory), on all ranks, if any lacks memory.
  explicit HostStaging(Group& group);
  HostStaging(const HostStaging&) = delete;
  HostStaging& operator=(const HostStaging&) = delete;
  ~HostStaging();

  // Serves a call. Throws Error(memory), on all ranks, if any lacks memory for rounded values. The host waits for the
  // copies down, and for its peers. Copies up may still be under way afterwards; the call's stream waits for them.
  // Returns the number of elements of the result that are not finite, if they were rounded.
  std::optional<std::size_t> run(const Call& call);

 private:
  static constexpr std::size_t slots = 3;

  // Buffers of one piece: two in pinned memory, and as much device memory for rounded values.
  struct Slot {
    std::byte* input;
    std::byte* output;
    compute::cuda::OwnedEvent down;
    compute::cuda::OwnedEvent up;
  };

  [[nodiscard]] static transport::Signature on_host(transport::Signature signature);
  [[nodiscard]] static Call call_on_host(Call piece, const Slot& slot);
  [[nodiscard]] bool rounds(const transport::Signature& signature) const;
  void copy_down(const Call& call, const CallPiece& piece, std::size_t index, bool rounded);
  void copy_up(const Call& call, const CallPiece& piece, std::size_t index, bool rounded);

  Group& group_;
  std::size_t capacity_;
  std::shared_ptr<transport::Segment> memory_;
  std::unique_ptr<compute::cuda::Pinned> pinned_;
  compute::cuda::DeviceMemory rounded_;  // allocated by the first call that rounds
  std::unique_ptr<compute::cuda::OwnedStream> down_;
  std::unique_ptr<compute::cuda::OwnedStream> up_;
  std::unique_ptr<compute::cuda::OwnedEvent> begin_;
  std::unique_ptr<compute::cuda::OwnedEvent> end_;
  std::vector<Slot> slots_;
};

}  // namespace gradientflow::collective

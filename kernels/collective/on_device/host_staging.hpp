// Calls on tensors of CUDA devices by way of pinned memory and the collectives of the host, in pieces: while the host
// reduces one, the next is on its way down and the last on its way up.
//
// The pinned memory is node memory, so inside a node the hosts reduce it in one pass. Where values are rounded for the
// wire, the device rounds them before they go down, and widens them after they have come up.
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
  // On the current device. Collective. Throws Error(memory), on all ranks, where one cannot get what it needs.
  explicit HostStaging(Group& group);
  HostStaging(const HostStaging&) = delete;
  HostStaging& operator=(const HostStaging&) = delete;
  ~HostStaging();

  // Serves a call. Throws Error(memory), on all ranks, where one has no memory to round values in. The host waits for
  // what has to come down, and for the other ranks; what goes up may still be on its way afterwards, and the call's
  // stream is ordered behind it. Returns the elements of the result that are not finite, where they were rounded.
  std::optional<std::size_t> run(const Call& call);

 private:
  static constexpr std::size_t slots = 3;

  // One piece on its way: two buffers in pinned memory, and as much of the device for rounded values.
  struct Slot {
    std::byte* input;
    std::byte* output;
    compute::cuda::OwnedEvent down;
    compute::cuda::OwnedEvent up;
  };

  [[nodiscard]] static transport::Signature on_host(transport::Signature signature);
  [[nodiscard]] static Call call_on_host(Call piece, const Slot& slot);
  [[nodiscard]] bool rounds(const transport::Signature& signature) const;
  void bring_down(const Call& call, const CallPiece& piece, std::size_t index, bool rounded);
  void bring_up(const Call& call, const CallPiece& piece, std::size_t index, bool rounded);

  Group& group_;
  std::size_t capacity_;
  std::shared_ptr<transport::Segment> memory_;
  std::unique_ptr<compute::cuda::Pinned> pinned_;
  compute::cuda::DeviceMemory rounded_;  // made when a call rounds
  std::unique_ptr<compute::cuda::OwnedStream> down_;
  std::unique_ptr<compute::cuda::OwnedStream> up_;
  std::unique_ptr<compute::cuda::OwnedEvent> begin_;
  std::unique_ptr<compute::cuda::OwnedEvent> end_;
  std::vector<Slot> slots_;
};

}  // namespace gradientflow::collective

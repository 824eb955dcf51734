// The ranks of a communicator as collectives on CUDA devices see them, one device to each rank, and the way from a call
// to the algorithm that serves it.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../group.hpp"
#include "../select/device_selector.hpp"
#include "host_staging.hpp"
#include "nccl_collectives.hpp"
#include "peer_exchange.hpp"

namespace gradientflow::collective {

class DeviceGroup {
 public:
  // For tensors on `device`. Finds out what the ranks have: NCCL, memory of the others. Collective. Throws, on all
  // ranks the same, where one cannot use its device.
  DeviceGroup(Group& group, int device);
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;
  ~DeviceGroup();

  [[nodiscard]] int device() const { return device_; }

  // A stream of the communicator's own, for calls in the background.
  [[nodiscard]] compute::cuda::Stream stream() const { return stream_->get(); }

  // Serves one call, as Group::run does. What it puts into the call's stream may still be under way when it returns.
  Outcome run(const Call& call);

  // Memory of this rank's device, which the ranks of the node map where they can. Collective.
  std::shared_ptr<DeviceSegment> allocate(std::size_t bytes);

  // For people to read: why there is no NCCL, and why ranks do not reach each other's memory; empty where all is well.
  [[nodiscard]] const std::string& no_nccl() const { return no_nccl_; }
  [[nodiscard]] const std::string& no_peers() const { return no_peers_; }

  // Throws what went wrong on the device after a call had returned, if something has.
  void check() const;

  // Streams go on, whatever the other ranks do.
  void abort() noexcept;

 private:
  void find_nccl(const std::string& bus_id);
  bool start_nccl(transport::Algorithm algorithm);
  [[nodiscard]] NcclCollectives* nccl() const;
  [[nodiscard]] DeviceSituation situation(const transport::Signature& signature, bool in_device_memory) const;
  Choice serve(const Call& call, Choice choice, Outcome& outcome);
  std::vector<std::size_t> common_segment(const Call& call);
  static void run_alone(const Call& call);
  std::shared_ptr<DeviceSegment> allocate_apart(std::size_t bytes);
  void report(const transport::Signature& signature, const Choice& choice) const;

  Group& group_;
  int device_;
  std::unique_ptr<compute::cuda::OwnedStream> stream_;
  bool shares_device_ = false;
  std::string no_nccl_;
  std::string no_peers_;
  std::shared_ptr<const transport::NcclLibrary> nccl_library_;
  mutable std::mutex nccl_mutex_;          // for the pointer, whose object is safe by itself
  std::unique_ptr<NcclCollectives> nccl_;  // made with the first call that takes it
  std::unique_ptr<PeerExchange> peers_;
  std::unique_ptr<HostStaging> staging_;  // likewise
  std::unique_ptr<compute::cuda::OwnedEvent>
      last_;  // the end of the last call, for the next one, perhaps in another stream
};

}  // namespace gradientflow::collective

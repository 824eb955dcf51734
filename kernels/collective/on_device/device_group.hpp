// Collectives on CUDA devices, one for each rank: selects the algorithm of a call, and runs it.
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
  // Serves tensors on `device`. Tests if the ranks have NCCL and can map each other's memory. Collective. Throws the
  // same error on all ranks if any cannot use its device.
  DeviceGroup(Group& group, int device);
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;
  ~DeviceGroup();

  [[nodiscard]] int device() const { return device_; }

  // Returns the communicator's own stream, for calls in the background.
  [[nodiscard]] compute::cuda::Stream stream() const { return stream_->get(); }

  // Serves one call, like Group::run. Work in the call's stream may still be under way when it returns.
  CallResult run(const Call& call);

  // Allocates memory of this rank's device, mapped by the ranks of the node if they can. Collective.
  std::shared_ptr<DeviceSegment> allocate(std::size_t bytes);

  // Return the reason, for messages, why there is no NCCL, or why ranks cannot map each other's memory; empty if there
  // is none.
  [[nodiscard]] const std::string& no_nccl() const { return no_nccl_; }
  [[nodiscard]] const std::string& no_peers() const { return no_peers_; }

  // Throws the error, if any, that happened on the device after a call had returned.
  void check() const;

  // Lets streams continue, whatever other ranks do.
  void abort() noexcept;

 private:
  void find_nccl(const std::string& bus_id);
  bool start_nccl(transport::Algorithm algorithm);
  [[nodiscard]] NcclCollectives* nccl() const;
  [[nodiscard]] DeviceSituation situation(const transport::Signature& signature, bool in_device_memory) const;
  DeviceChoice serve(const Call& call, DeviceChoice choice, CallResult& outcome);
  std::vector<std::size_t> common_segment(const Call& call);
  static void run_alone(const Call& call);
  std::shared_ptr<DeviceSegment> allocate_unmapped(std::size_t bytes);
  void report(const transport::Signature& signature, const DeviceChoice& choice) const;

  Group& group_;
  int device_;
  std::unique_ptr<compute::cuda::OwnedStream> stream_;
  bool shares_device_ = false;
  std::string no_nccl_;
  std::string no_peers_;
  std::shared_ptr<const transport::NcclLibrary> nccl_library_;
  mutable std::mutex nccl_mutex_;          // guards the pointer; the object is thread-safe by itself
  std::unique_ptr<NcclCollectives> nccl_;  // created by the first call that uses it
  std::unique_ptr<PeerExchange> peers_;
  std::unique_ptr<HostStaging> staging_;  // likewise
  std::unique_ptr<compute::cuda::OwnedEvent>
      last_;  // end of the last call, for which the next call waits, perhaps in another stream
};

}  // namespace gradientflow::collective

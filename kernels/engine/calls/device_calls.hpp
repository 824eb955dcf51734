// Calls on tensors of a CUDA device. A communicator serves a single device, which its first such call determines.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>

#include "../../collective/group.hpp"
#include "../../collective/on_device/device_group.hpp"
#include "recorder.hpp"

namespace gradientflow::engine {

class DeviceCalls {
 public:
  DeviceCalls(collective::Group& group, Recorder& recorder) : group_(group), recorder_(recorder) {}

  void check(int device) const;  // throws Error(value) if earlier calls have used another device
  void bind(int device);         // checks, and fixes the device before any call is served

  // Returns the group that serves the device's calls. Called in turn. Creating it is collective, so all ranks first
  // agree on the call that needs it: peers may be in a call on host memory.
  const std::shared_ptr<collective::DeviceGroup>& group(int device, const collective::Call& call);

  // Returns the same group; nullptr before the first such call.
  [[nodiscard]] const collective::DeviceGroup* made() const;

  // Runs the call, and records when the device runs it. Called in turn.
  collective::CallResult run(const collective::Call& call);

  // Aborts the calls under way, so that no stream waits for ranks that will not come.
  void abort() noexcept;

 private:
  collective::Group& group_;
  Recorder& recorder_;
  mutable std::mutex mutex_;
  std::optional<int> device_;  // device of the first call
  std::shared_ptr<collective::DeviceGroup> made_;
};

}  // namespace gradientflow::engine

// Recorder: writes the calls of a communicator to timelines, on the host and on a device.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "../../base/error.hpp"
#include "../../base/timeline.hpp"
#include "../../collective/group.hpp"
#include "device_timeline.hpp"
#include "handle.hpp"

namespace gradientflow::engine {

class Recorder {
 public:
  explicit Recorder(std::string name) : name_(std::move(name)) {}

  // True if there is a timeline. Clocks are read only then.
  [[nodiscard]] bool is_on() const { return is_on_.load(std::memory_order_relaxed); }

  // Records later calls in `timeline`, on a track of the recorder's name; nullptr: nowhere.
  void follow(const std::shared_ptr<Timeline>& timeline);

  // Return nullptr if nothing is recorded.
  [[nodiscard]] std::shared_ptr<Timeline> timeline() const;
  [[nodiscard]] std::shared_ptr<DeviceTimeline> device_timeline(int device);

  void record(const collective::Call& call, const collective::CallResult& outcome, const Times& times,
              const std::optional<Error>& failure = {}) const;

 private:
  std::string name_;
  std::atomic<bool> is_on_{false};
  mutable std::mutex mutex_;
  std::shared_ptr<Timeline> timeline_;
  int track_ = 0;
  std::shared_ptr<DeviceTimeline> device_timeline_;
};

}  // namespace gradientflow::engine

// Times of calls on a device, for the timeline: the host itself sees only when the calls were put into a stream.
//
// Timing events are recorded around each call. Once an event has happened, its distance from a first event, whose host
// time is known, gives its host time to within about ten microseconds.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "../../base/timeline.hpp"
#include "../../compute/cuda/owned.hpp"

namespace gradientflow::engine {

class DeviceTimeline {
 public:
  // Adds rows for `device` to `timeline`, for a communicator called `name`. Waits for the device once.
  DeviceTimeline(std::shared_ptr<Timeline> timeline, int device, const std::string& name);
  DeviceTimeline(const DeviceTimeline&) = delete;
  DeviceTimeline& operator=(const DeviceTimeline&) = delete;
  ~DeviceTimeline();  // waits up to a second to write the rest

  // Write one span for the work put into the stream between begin() and end(). instant() writes the time at which the
  // work then in the stream was done.
  void begin(compute::cuda::Stream stream);
  void end(compute::cuda::Stream stream, const std::string& name, const std::string& facts);
  void instant(compute::cuda::Stream stream, const std::string& name);

  [[nodiscard]] const std::shared_ptr<Timeline>& timeline() const { return timeline_; }

 private:
  struct Entry {
    std::unique_ptr<compute::cuda::OwnedEvent> begin;  // none: an instant
    compute::cuda::OwnedEvent end;
    std::string name;
    std::string facts;
  };
  void write_finished_entries();
  [[nodiscard]] Timeline::Time time_of(compute::cuda::Event event) const;

  std::shared_ptr<Timeline> timeline_;
  int device_;
  int track_;
  std::mutex mutex_;
  std::unique_ptr<compute::cuda::OwnedEvent> origin_;
  Timeline::Time origin_time_;
  std::unique_ptr<compute::cuda::OwnedEvent> begun_;
  std::deque<Entry> entries_;
};

}  // namespace gradientflow::engine

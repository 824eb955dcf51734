#include "recorder.hpp"

#include <string>
#include <utility>

namespace gradientflow::engine {

void Recorder::follow(const std::shared_ptr<Timeline>& timeline) {
  const int track = timeline == nullptr ? 0 : timeline->add_track(name_);
  std::shared_ptr<DeviceTimeline> former;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  former = std::exchange(device_timeline_, nullptr);
  timeline_ = timeline;
  track_ = track;
  is_on_ = timeline != nullptr;
}

std::shared_ptr<Timeline> Recorder::timeline() const {
  if (!is_on()) {
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  return timeline_;
}

std::shared_ptr<DeviceTimeline> Recorder::device_timeline(int device) {
  const std::lock_guard lock(mutex_);
  if (timeline_ == nullptr) {
    return nullptr;
  }
  if (device_timeline_ == nullptr) {
    device_timeline_ = std::make_shared<DeviceTimeline>(timeline_, device, name_);
  }
  return device_timeline_;
}

void Recorder::record(const collective::Call& call, const collective::CallResult& outcome, const Times& times,
                      const std::optional<Error>& failure) const {
  if (!is_on()) {
    return;
  }
  std::shared_ptr<Timeline> timeline;
  int track = 0;
  {
    const std::lock_guard lock(mutex_);
    timeline = timeline_;
    track = track_;
  }
  if (timeline == nullptr) {
    return;
  }
  const std::string name = describe(call.signature, call.label);
  timeline->waited(track, name, times.queued, times.started);
  std::string facts = "\"bytes\": " + std::to_string(call.bytes());
  if (failure) {
    facts += R"(, "failed": true)";
  } else {
    facts += ", \"path\": \"" + std::string(outcome.path) + "\"";
  }
  if (outcome.bytes_sent) {
    facts += ", \"bytes_sent\": " + std::to_string(*outcome.bytes_sent);
  }
  if (outcome.nonfinite) {
    facts += ", \"nonfinite\": " + std::to_string(*outcome.nonfinite);
  }
  timeline->span(track, name, times.started, times.ended, facts);
}

}  // namespace gradientflow::engine

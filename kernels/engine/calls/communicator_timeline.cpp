// What a communicator writes to timelines.
#include <string>
#include <utility>

#include "turns.hpp"

namespace gradientflow::engine {

void Communicator::follow(const std::shared_ptr<Timeline>& timeline) {
  const int track = timeline == nullptr ? 0 : timeline->add_track(name_);
  std::shared_ptr<DeviceTimeline> former;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  former = std::exchange(device_timeline_, nullptr);
  timeline_ = timeline;
  track_ = track;
  recorded_ = timeline != nullptr;
}

void Communicator::start_timeline(const std::string& path) {
  check_process();
  const collective::Group::Clock clock = in_turn([&] { return group_->compare_clocks(); });
  constexpr double micro = 1e6;
  const int job_rank = group_->endpoint().job_rank();
  const std::string own = path_of_rank(path, job_rank);
  auto timeline = Timeline::find(own);
  if (timeline == nullptr) {
    timeline = Timeline::open(own, {job_rank, clock.run, clock.offset * micro});
  }
  follow(timeline);
  for (const auto& copy : duplicates()) {
    copy->follow(timeline);
  }
}

void Communicator::stop_timeline() {
  follow(nullptr);
  for (const auto& copy : duplicates()) {
    copy->follow(nullptr);
  }
}

std::shared_ptr<Timeline> Communicator::timeline() const {
  if (!recorded_.load(std::memory_order_relaxed)) {
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  return timeline_;
}

std::shared_ptr<DeviceTimeline> Communicator::device_timeline(int device) {
  const std::lock_guard lock(mutex_);
  if (timeline_ == nullptr) {
    return nullptr;
  }
  if (device_timeline_ == nullptr) {
    device_timeline_ = std::make_shared<DeviceTimeline>(timeline_, device, name_);
  }
  return device_timeline_;
}

void Communicator::record(const collective::Call& call, const collective::Outcome& outcome, const Times& times,
                          const std::optional<Error>& failure) const {
  if (!recorded_.load(std::memory_order_relaxed)) {
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
    facts += ", \"path\": \"" + std::string(name_of(outcome.path)) + "\"";
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

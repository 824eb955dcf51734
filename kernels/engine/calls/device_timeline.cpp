#include "device_timeline.hpp"

#include <chrono>
#include <thread>
#include <utility>

#include "../../base/error.hpp"
#include "../../base/waits.hpp"

namespace gradientflow::engine {
namespace {

namespace cuda = compute::cuda;

}  // namespace

DeviceTimeline::DeviceTimeline(std::shared_ptr<Timeline> timeline, int device, const std::string& name)
    : timeline_(std::move(timeline)),
      device_(device),
      track_(timeline_->add_track(name + " on CUDA device " + std::to_string(device))) {
  const cuda::UseDevice use(device_);
  const cuda::OwnedStream stream;
  origin_ = std::make_unique<cuda::OwnedEvent>(cuda::EventKind::time);
  cuda::runtime().record(origin_->get(), stream.get());
  cuda::runtime().synchronize(stream.get());
  origin_time_ = Timeline::Clock::now();
}

DeviceTimeline::~DeviceTimeline() {
  const auto deadline = Timeline::Clock::now() + waits::device_times.time();
  try {
    while (true) {
      {
        const std::lock_guard lock(mutex_);
        write_finished_entries();
        if (entries_.empty() || Timeline::Clock::now() > deadline) {
          return;
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): a device that has failed tells no times
  }
}

void DeviceTimeline::begin(cuda::Stream stream) {
  const std::lock_guard lock(mutex_);
  const cuda::UseDevice use(device_);
  begun_ = std::make_unique<cuda::OwnedEvent>(cuda::EventKind::time);
  cuda::runtime().record(begun_->get(), stream);
}

void DeviceTimeline::end(cuda::Stream stream, const std::string& name, const std::string& facts) {
  const std::lock_guard lock(mutex_);
  const cuda::UseDevice use(device_);
  entries_.push_back({std::move(begun_), cuda::OwnedEvent(cuda::EventKind::time), name, facts});
  cuda::runtime().record(entries_.back().end.get(), stream);
  write_finished_entries();
}

void DeviceTimeline::instant(cuda::Stream stream, const std::string& name) {
  const std::lock_guard lock(mutex_);
  const cuda::UseDevice use(device_);
  entries_.push_back({{}, cuda::OwnedEvent(cuda::EventKind::time), name, {}});
  cuda::runtime().record(entries_.back().end.get(), stream);
}

Timeline::Time DeviceTimeline::time_of(cuda::Event event) const {
  const std::chrono::duration<double, std::milli> since(cuda::runtime().milliseconds(origin_->get(), event));
  return origin_time_ + std::chrono::duration_cast<Timeline::Clock::duration>(since);
}

// Writes finished entries, in the order in which they were put into streams.
void DeviceTimeline::write_finished_entries() {
  while (!entries_.empty() && cuda::runtime().happened(entries_.front().end.get())) {
    const Entry& entry = entries_.front();
    if (entry.begin) {
      timeline_->span(track_, entry.name, time_of(entry.begin->get()), time_of(entry.end.get()), entry.facts);
    } else {
      timeline_->instant(track_, entry.name, time_of(entry.end.get()));
    }
    entries_.pop_front();
  }
}

}  // namespace gradientflow::engine

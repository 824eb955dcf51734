// What an asynchronous call hands back: whether it is done, when it ran, and how it ended.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "../../base/error.hpp"
#include "../../collective/group.hpp"
#include "../../collective/on_device/device_group.hpp"
#include "../../compute/cuda/owned.hpp"

namespace gradientflow::engine {

// When a call was made, began and ended.
struct Times {
  using Clock = std::chrono::steady_clock;
  Clock::time_point queued;
  Clock::time_point started;
  Clock::time_point ended;
};

// Of a call on tensors of a device: what happens there once the result is there, and who knows of what went wrong.
struct OnDevice {
  int device;
  compute::cuda::OwnedEvent event;
  std::weak_ptr<const collective::DeviceGroup> group;
};
using DeviceEnd = std::shared_ptr<OnDevice>;  // nullptr for other calls

// How a call failed.
struct Failure {
  Error error;
  std::atomic<bool> told;  // whether somebody has been told, who waited for the call or made another one
};

class Handle {
 public:
  [[nodiscard]] bool done() const noexcept { return done_.load(std::memory_order_acquire); }

  // Waits until the call is done and throws the error that it ended with, if it did. With a timeout (seconds, 0 or
  // more) that passes first: throws Error(timeout); the call goes on and can be waited for again.
  void wait(std::optional<double> timeout);

  // Waits until the call is done, or the time has come: says which. The error that it ended with is thrown by `wait`.
  bool done_by(std::optional<Times::Clock::time_point> deadline);

  // Waits until one of the calls is done, or the time has come: which one, the first of several, or nothing.
  static std::optional<std::size_t> any_done_by(std::span<Handle* const> handles,
                                                std::optional<Times::Clock::time_point> deadline);

  // Why the call failed, if it did and nobody has been told. `told` says that somebody has.
  [[nodiscard]] std::optional<std::string> untold() const;
  void told() const;

  // After `wait`, for tensors of a device, on which the call may still be at work: what is put into the stream from now
  // on sees the result; or the host waits for it. Both throw what has gone wrong on the device by then.
  [[nodiscard]] bool ends_on_device() const;
  void order(compute::cuda::Stream stream) const;
  void synchronize() const;

  // Whether the call has ended, on the device, too: nothing of it reads or writes the tensors any more.
  [[nodiscard]] bool device_done() const;

  // Of a call that has ended: how it was served, and when.
  [[nodiscard]] collective::Outcome outcome() const;
  [[nodiscard]] Times times() const;

  // By the engine, once.
  void finish(const collective::Outcome& outcome, const Times& times, DeviceEnd end, std::shared_ptr<Failure> failure);

 private:
  // Who waits for one of several calls.
  struct Watcher {
    std::mutex mutex;
    std::condition_variable changed;
  };

  [[nodiscard]] DeviceEnd end() const;
  static void check(const OnDevice& end);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> done_{false};
  std::shared_ptr<Failure> failure_;
  std::vector<Watcher*> watchers_;
  collective::Outcome outcome_{};
  Times times_{};
  DeviceEnd end_;
};

}  // namespace gradientflow::engine

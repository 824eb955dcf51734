// The handle of an asynchronous call: whether it is done, when it ran, and how it ended.
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

// Of a call on device tensors: the event that follows its result in the stream, and the group that knows its errors.
struct OnDevice {
  int device;
  compute::cuda::OwnedEvent event;
  std::weak_ptr<const collective::DeviceGroup> group;
};
using DeviceEnd = std::shared_ptr<OnDevice>;  // nullptr for other calls

// How a call was served.
struct Served {
  collective::Outcome outcome;
  Times times;
  DeviceEnd end;
};

// How a call failed.
struct Failure {
  Error error;
  std::atomic<bool> told;  // whether a thread that waited for the call, or made another one, has been told
};

class Handle {
 public:
  [[nodiscard]] bool done() const noexcept { return done_.load(std::memory_order_acquire); }

  // Waits until the call is done and throws the error that it ended with, if it did. With a timeout (seconds, 0 or
  // more) that passes first: throws Error(timeout); the call goes on and can be waited for again.
  void wait(std::optional<double> timeout);

  // Waits until the call is done or the deadline has passed; returns whether it is done. `wait` throws the call's
  // error.
  bool done_by(std::optional<Times::Clock::time_point> deadline);

  // Waits until one of the calls is done or the deadline has passed. Returns the index of the first that is done, if
  // any.
  static std::optional<std::size_t> any_done_by(std::span<Handle* const> handles,
                                                std::optional<Times::Clock::time_point> deadline);

  // The error of the call, if it failed and nobody has been told. `told` marks it as told.
  [[nodiscard]] std::optional<std::string> unreported_error() const;
  void mark_reported() const;

  // After `wait`, for device tensors, on which the call may still be running: `order` lets work put into the stream
  // from now on see the result; `synchronize` waits for it. Both throw errors of the device so far.
  [[nodiscard]] bool ends_on_device() const;
  void order(compute::cuda::Stream stream) const;
  void synchronize() const;

  // Whether the call has ended, on the device too: it no longer reads or writes the tensors.
  [[nodiscard]] bool device_done() const;

  // Of a call that has ended: how it was served, and when.
  [[nodiscard]] collective::Outcome outcome() const;
  [[nodiscard]] Times times() const;

  // Called by the engine, once.
  void finish(Served served, std::shared_ptr<Failure> failure);

 private:
  // A thread in any_done_by.
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
  Served served_{};
};

}  // namespace gradientflow::engine

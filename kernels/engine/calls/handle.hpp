// Handle of an asynchronous call: its completion, times and result.
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

// Times at which a call was made, began and ended.
struct Times {
  using Clock = std::chrono::steady_clock;
  Clock::time_point queued;
  Clock::time_point started;
  Clock::time_point ended;
};

// End of a call on device tensors: the event that follows its result in the stream, and the group that knows its
// errors.
struct OnDevice {
  int device;
  compute::cuda::OwnedEvent event;
  std::weak_ptr<const collective::DeviceGroup> group;
};
using DeviceEnd = std::shared_ptr<OnDevice>;  // nullptr for other calls

// Result of a served call.
struct Served {
  collective::CallResult outcome;
  Times times;
  DeviceEnd end;
};

// Error of a failed call.
struct Failure {
  Error error;
  std::atomic<bool> told;  // true once a thread that waited for the call, or made another one, has been told
};

class Handle {
 public:
  [[nodiscard]] bool done() const noexcept { return done_.load(std::memory_order_acquire); }

  // Waits until the call is done, and throws its error if it failed. Throws Error(timeout) if a timeout (seconds, 0 or
  // more) passes first; the call continues and can be waited for again.
  void wait(std::optional<double> timeout);

  // Waits until the call is done or the deadline has passed; returns true if it is done. `wait` throws the call's
  // error.
  bool done_by(std::optional<Times::Clock::time_point> deadline);

  // Waits until any of the calls is done or the deadline has passed. Returns the index of the first finished call, if
  // any.
  static std::optional<std::size_t> any_done_by(std::span<Handle* const> handles,
                                                std::optional<Times::Clock::time_point> deadline);

  // Returns the call's error, if the call failed and no caller has been told. mark_reported() notes that a caller has
  // been told.
  [[nodiscard]] std::optional<std::string> unreported_error() const;
  void mark_reported() const;

  // For calls on device tensors, which may still be running on the device after `wait`: `order` lets later work of the
  // stream see the result; `synchronize` waits for the result. Both throw errors that the device has had so far.
  [[nodiscard]] bool ends_on_device() const;
  void order(compute::cuda::Stream stream) const;
  void synchronize() const;

  // True if the call has ended on the device too, and no longer reads or writes the tensors.
  [[nodiscard]] bool device_done() const;

  // Return the outcome and the times of a call that has ended.
  [[nodiscard]] collective::CallResult outcome() const;
  [[nodiscard]] Times times() const;

  // Completes the call; called once, by the engine.
  void finish(Served served, std::shared_ptr<Failure> failure);

 private:
  // Thread in any_done_by.
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

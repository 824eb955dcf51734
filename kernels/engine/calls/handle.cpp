#include "handle.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>

#include "../../base/text.hpp"

namespace gradientflow::engine {

bool Handle::done_by(std::optional<Times::Clock::time_point> deadline) {
  std::unique_lock lock(mutex_);
  const auto is_done = [&] { return done(); };
  if (deadline) {
    return changed_.wait_until(lock, *deadline, is_done);
  }
  changed_.wait(lock, is_done);
  return true;
}

void Handle::wait(std::optional<double> timeout) {
  if (timeout && std::isnan(*timeout)) {
    throw Error(ErrorKind::value, "timeout is not a number");
  }
  std::unique_lock lock(mutex_);
  const auto is_done = [&] { return done(); };
  if (!timeout) {
    changed_.wait(lock, is_done);
  } else if (!changed_.wait_for(lock, std::chrono::duration<double>(std::clamp(*timeout, 0.0, 1e9)), is_done)) {
    throw Error(ErrorKind::timeout, "the call was not done within " + format_number(*timeout) + " s; it goes on");
  }
  if (failure_) {
    failure_->told = true;
    throw Error(failure_->error);
  }
}

std::optional<std::size_t> Handle::any_done_by(std::span<Handle* const> handles,
                                               std::optional<Times::Clock::time_point> deadline) {
  const auto first_done = [&]() -> std::optional<std::size_t> {
    const auto found =
        std::find_if(handles.begin(), handles.end(), [](const Handle* handle) { return handle->done(); });
    return found == handles.end() ? std::nullopt : std::optional<std::size_t>(found - handles.begin());
  };
  if (const auto done = first_done()) {
    return done;
  }
  Watcher watcher;
  struct Leave {
    std::span<Handle* const> handles;
    void operator()(Watcher* left) const {
      for (Handle* const handle : handles) {
        const std::lock_guard lock(handle->mutex_);
        std::erase(handle->watchers_, left);
      }
    }
  };
  const std::unique_ptr<Watcher, Leave> leave(&watcher, Leave{handles});
  for (Handle* const handle : handles) {
    const std::lock_guard lock(handle->mutex_);
    handle->watchers_.push_back(&watcher);
  }
  std::unique_lock lock(watcher.mutex);
  const auto is_done = [&] { return first_done().has_value(); };
  if (deadline) {
    watcher.changed.wait_until(lock, *deadline, is_done);
  } else {
    watcher.changed.wait(lock, is_done);
  }
  return first_done();
}

std::optional<std::string> Handle::unreported_error() const {
  const std::lock_guard lock(mutex_);
  return failure_ && !failure_->told ? std::optional<std::string>(failure_->error.what()) : std::nullopt;
}

void Handle::mark_reported() const {
  const std::lock_guard lock(mutex_);
  if (failure_) {
    failure_->told = true;
  }
}

collective::CallResult Handle::outcome() const {
  const std::lock_guard lock(mutex_);
  return served_.outcome;
}

Times Handle::times() const {
  const std::lock_guard lock(mutex_);
  return served_.times;
}

DeviceEnd Handle::end() const {
  const std::lock_guard lock(mutex_);
  return served_.end;
}

bool Handle::ends_on_device() const { return end() != nullptr; }

void Handle::order(compute::cuda::Stream stream) const {
  if (const DeviceEnd end = this->end()) {
    const compute::cuda::UseDevice use(end->device);  // `stream` may be its default stream
    compute::cuda::runtime().wait(stream, end->event.get());
    check(*end);
  }
}

void Handle::synchronize() const {
  if (const DeviceEnd end = this->end()) {
    compute::cuda::runtime().synchronize_event(end->event.get());
    check(*end);
  }
}

void Handle::check(const OnDevice& end) {
  if (const auto group = end.group.lock()) {
    group->check();
  }
}

bool Handle::device_done() const {
  if (!done()) {
    return false;
  }
  const DeviceEnd end = this->end();  // set before done_
  try {
    return end == nullptr || compute::cuda::runtime().happened(end->event.get());
  } catch (const Error&) {  // the device has failed, or belongs to the process that this one was forked from
    return true;
  }
}

void Handle::finish(Served served, std::shared_ptr<Failure> failure) {
  const std::lock_guard lock(mutex_);
  served_ = std::move(served);
  failure_ = std::move(failure);
  done_.store(true, std::memory_order_release);
  changed_.notify_all();
  for (Watcher* const watcher : watchers_) {
    const std::lock_guard watching(watcher->mutex);  // so that the watcher is either asleep or before its check
    watcher->changed.notify_all();
  }
}

}  // namespace gradientflow::engine

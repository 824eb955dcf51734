#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "mailbox.hpp"

namespace gradientflow::transport {

// Alarm that a mailbox's thread sleeps on. It outlives the mailbox, which may be destroyed by a callback, for example.
class Mailbox::Alarm {
 public:
  // Sleeps for this time, or until it rings; while nothing is pending, until it rings.
  void sleep(std::chrono::nanoseconds nap) {
    std::unique_lock lock(mutex_);
    const auto is_over = [this] { return has_rung_; };
    if (is_idle_) {
      rings_.wait(lock, is_over);
    } else {
      rings_.wait_for(lock, nap, is_over);
    }
    has_rung_ = false;
  }
  void ring() {
    const std::lock_guard lock(mutex_);
    has_rung_ = true;
    is_idle_ = false;
    rings_.notify_one();
  }
  // Called with the mailbox's mutex_ held. ring_if_idle() costs nothing while the thread only naps.
  void rest() noexcept { is_idle_ = true; }
  void ring_if_idle() {
    if (is_idle_) {
      ring();
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable rings_;
  std::atomic<bool> is_idle_{false};
  bool has_rung_ = false;
};

}  // namespace gradientflow::transport

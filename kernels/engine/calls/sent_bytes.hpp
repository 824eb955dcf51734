// Count of the bytes that this rank has sent in messages, through a communicator and all communicators made from it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace gradientflow::engine {

class SentBytes {
 public:
  // `within`: the count of the communicator that this one is made from, if any.
  explicit SentBytes(std::shared_ptr<SentBytes> within = nullptr) : within_(std::move(within)) {}

  // Adds the bytes of a call. If they are unknown (no value), the total is unknown from then on. From any thread.
  void add(std::optional<std::uint64_t> bytes) noexcept {
    if (bytes) {
      bytes_.fetch_add(*bytes, std::memory_order_relaxed);
    } else {
      known_.store(false, std::memory_order_relaxed);
    }
    if (within_ != nullptr) {
      within_->add(bytes);
    }
  }

  [[nodiscard]] std::optional<std::uint64_t> total() const noexcept {
    return known_.load(std::memory_order_relaxed) ? std::optional(bytes_.load(std::memory_order_relaxed))
                                                  : std::nullopt;
  }

 private:
  std::shared_ptr<SentBytes> within_;
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<bool> known_{true};
};

}  // namespace gradientflow::engine

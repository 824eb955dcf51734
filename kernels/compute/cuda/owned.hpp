// RAII owners of CUDA's resources, which are created on the calling thread's current device.
#pragma once

#include <cstddef>
#include <utility>

#include "../../base/error.hpp"
#include "runtime.hpp"

namespace gradientflow::compute::cuda {

// Makes a device the calling thread's current device, and afterwards restores the former device, if this process uses
// that device. A thread's first device is 0: if the process does not use device 0, making it current again would waste
// memory of that device.
class UseDevice {
 public:
  explicit UseDevice(int device) : before_(runtime().device()), device_(device) {
    if (before_ != device_) {
      runtime().use(device_);
    }
  }
  UseDevice(const UseDevice&) = delete;
  UseDevice& operator=(const UseDevice&) = delete;
  ~UseDevice() {
    if (before_ != device_ && runtime().is_in_use(before_)) {
      try {
        runtime().use(before_);
      } catch (const Error&) {  // NOLINT(bugprone-empty-catch): it was the current one, so it can be again
      }
    }
  }

 private:
  int before_;
  int device_;
};

class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(std::size_t bytes) : data_(runtime().allocate(bytes)), bytes_(bytes) {}
  DeviceMemory(DeviceMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() {
    if (data_ != nullptr) {
      runtime().free(data_);
    }
  }

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Registration of host memory as pinned, so that copies of it do not wait. The memory must stay mapped.
class Pinned {
 public:
  Pinned(void* memory, std::size_t bytes) : memory_(memory) { runtime().register_host(memory, bytes); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned() { runtime().unregister_host(memory_); }

 private:
  void* memory_;
};

class OwnedStream {
 public:
  OwnedStream() : stream_(runtime().make_stream()) {}
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  ~OwnedStream() { runtime().destroy(stream_); }

  [[nodiscard]] Stream get() const { return stream_; }

 private:
  Stream stream_;
};

class OwnedEvent {
 public:
  explicit OwnedEvent(EventKind kind = EventKind::order) : event_(runtime().make_event(kind)) {}
  static OwnedEvent opened(const ProcessHandle& handle) { return OwnedEvent(runtime().open_event(handle)); }
  OwnedEvent(OwnedEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  OwnedEvent& operator=(OwnedEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  OwnedEvent(const OwnedEvent&) = delete;
  OwnedEvent& operator=(const OwnedEvent&) = delete;
  ~OwnedEvent() {
    if (event_ != nullptr) {
      runtime().destroy_event(event_);
    }
  }

  [[nodiscard]] Event get() const { return event_; }

 private:
  explicit OwnedEvent(Event event) : event_(event) {}
  Event event_;
};

}  // namespace gradientflow::compute::cuda

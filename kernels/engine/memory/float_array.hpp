// Array of float32 numbers. Its own memory is zero-filled, on a CUDA device or on the host; host memory is aligned to a
// cache line, and in huge pages if the system has them. Or the array uses memory that has another owner.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "../../compute/cuda/owned.hpp"

namespace gradientflow::engine {

class FloatArray {
 public:
  FloatArray() = default;
  explicit FloatArray(std::size_t size, std::optional<int> device = {});  // throws Error(memory)
  explicit FloatArray(std::span<float> elsewhere) : elsewhere_(elsewhere.data()), size_(elsewhere.size()) {}

  [[nodiscard]] float* data() const noexcept {
    if (elsewhere_ != nullptr) {
      return elsewhere_;
    }
    return device_ ? reinterpret_cast<float*>(on_device_.data()) : memory_.get();
  }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::optional<int> device() const noexcept { return device_; }

  // Copy from element `begin` on, to and from memory of the host. On a device, earlier work on the array must be done,
  // or be in the default stream, for which these functions wait.
  void read(std::size_t begin, std::span<float> destination) const;
  void write(std::size_t begin, std::span<const float> source);

 private:
  struct Free {
    void operator()(float* memory) const noexcept;
  };

  float* elsewhere_ = nullptr;
  std::unique_ptr<float, Free> memory_;
  compute::cuda::DeviceMemory on_device_;
  std::optional<int> device_;
  std::size_t size_ = 0;
};

}  // namespace gradientflow::engine

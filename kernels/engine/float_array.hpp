// Zero-filled float32 numbers, at a multiple of a cache line, in huge pages where the system has them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace gradientflow::engine {

class FloatArray {
 public:
  FloatArray() = default;
  explicit FloatArray(std::size_t size);  // throws Error(memory)

  [[nodiscard]] float* data() const noexcept { return memory_.get(); }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::span<float> all() const noexcept { return {memory_.get(), size_}; }

 private:
  struct Free {
    void operator()(float* memory) const noexcept;
  };

  std::unique_ptr<float, Free> memory_;
  std::size_t size_ = 0;
};

}  // namespace gradientflow::engine

// An array of fixed length. The object itself holds up to `few` elements, so calls among few ranks allocate no memory.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

namespace gradientflow {

template <class T, std::size_t few = 16>
class ShortArray {
 public:
  explicit ShortArray(std::size_t size) : size_(size), far_(size > few ? std::make_unique<T[]>(size) : nullptr) {}

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] T* data() noexcept { return far_ != nullptr ? far_.get() : near_.data(); }
  [[nodiscard]] const T* data() const noexcept { return far_ != nullptr ? far_.get() : near_.data(); }
  [[nodiscard]] T& operator[](std::size_t i) noexcept { return data()[i]; }
  [[nodiscard]] const T& operator[](std::size_t i) const noexcept { return data()[i]; }
  [[nodiscard]] T* begin() noexcept { return data(); }
  [[nodiscard]] T* end() noexcept { return data() + size_; }
  [[nodiscard]] const T* begin() const noexcept { return data(); }
  [[nodiscard]] const T* end() const noexcept { return data() + size_; }

 private:
  std::size_t size_;
  std::array<T, few> near_{};
  std::unique_ptr<T[]> far_;
};

}  // namespace gradientflow

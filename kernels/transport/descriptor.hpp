// Open files owned by one process. A forked process closes its copies and cannot use them, so peers see when the owner
// ends.
#pragma once

#include <utility>

#include "../base/forks.hpp"

namespace gradientflow::transport {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number);  // takes ownership; negative: no file
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)), forks_(other.forks_) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(); }

  [[nodiscard]] int get() const noexcept { return forks_ == count_forks() ? number_ : -1; }
  explicit operator bool() const noexcept { return get() >= 0; }
  void close() noexcept;

 private:
  int number_ = -1;
  int forks_ = 0;
};

}  // namespace gradientflow::transport

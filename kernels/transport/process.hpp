// Another process of this host: whether it still lives, and its memory; and the name of this one.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

namespace gradientflow::transport {

class Process {
 public:
  // `pid` must be alive when this is called.
  explicit Process(pid_t pid);
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process();

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  [[nodiscard]] bool alive() const noexcept;  // false from the moment it exits, also while nobody has reaped it
  void release() noexcept;                    // lets go of the descriptor; alive() opens another one from now on

  // Copies `bytes` bytes at `address` of the other process to `destination`. Throws Error(system) where the kernel
  // refuses (containers often do) or the memory is gone.
  void read(void* destination, const void* address, std::size_t bytes) const;

 private:
  pid_t pid_;
  int descriptor_;  // a pidfd, or -1 on kernels without them
};

// How this process is called in errors that others get: "process 4242 on host0".
[[nodiscard]] std::string name_of_this_process();

}  // namespace gradientflow::transport

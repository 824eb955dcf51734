// Another process of this host: its liveness and its memory. Also the name of this process.
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
  [[nodiscard]] bool alive() const noexcept;  // false as soon as it exits, even if it has not been reaped
  void release() noexcept;                    // closes the descriptor; from then on, alive() opens another one

  // Copies `bytes` bytes at `address` of that process to `destination`. Throws Error(system) where the kernel refuses
  // (containers often do) or the memory is gone.
  void read(void* destination, const void* address, std::size_t bytes) const;

 private:
  pid_t pid_;
  int descriptor_;  // a pidfd, or -1 on kernels without them
};

// Returns this process's name in errors on other ranks: "process 4242 on host0".
[[nodiscard]] std::string name_of_this_process();

}  // namespace gradientflow::transport

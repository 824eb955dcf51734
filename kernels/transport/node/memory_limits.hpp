// Memory that this process may still take, by the limits of the machine and of the process's control groups. The kernel
// kills a process that takes more, so the limits are read first.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gradientflow::transport {

class MemoryLimits {
 public:
  // Finds the control groups with a limit, of version 1 and 2: this process's own and all above it. `root` stands for
  // "/", for tests.
  explicit MemoryLimits(std::string root = "");

  // Return the memory that this process can ever have, and can have now, in bytes. The page cache counts as available,
  // because the kernel gives it up on demand.
  [[nodiscard]] std::size_t total() const;
  [[nodiscard]] std::size_t available() const;

 private:
  struct ControlGroup {
    std::string folder;
    bool unified;  // version 2
  };

  [[nodiscard]] std::size_t limit_of(const ControlGroup& group) const;
  [[nodiscard]] std::size_t used_of(const ControlGroup& group) const;
  [[nodiscard]] std::size_t of_machine(const std::string& name) const;

  std::string root_;
  std::vector<ControlGroup> groups_;
};

}  // namespace gradientflow::transport

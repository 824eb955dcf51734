// How much memory this process may still take: the machine has so much, and the process's control groups may have
// less. The kernel kills whoever takes more, so it is asked first.
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

  // The most that this process can ever have, and what it can have now, in bytes. What the kernel keeps of files counts
  // as available, because it is given up on demand.
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

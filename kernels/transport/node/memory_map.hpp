// Anonymous memory mapped by several processes of one user: one creates it, its peers open it. The system frees it when
// the last of these processes unmaps it or ends.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace gradientflow::transport {

// Mapping of a memfd, and, while `descriptor()` is not -1, the memfd itself.
class MemoryMap {
 public:
  MemoryMap() = default;
  MemoryMap(MemoryMap&& other) noexcept;
  MemoryMap& operator=(MemoryMap&& other) noexcept;
  MemoryMap(const MemoryMap&) = delete;
  MemoryMap& operator=(const MemoryMap&) = delete;
  ~MemoryMap();

  // Creates zero-filled memory. Throws Error(system).
  static MemoryMap create(std::size_t bytes);

  // Opens the memory that process `pid` holds open as `descriptor`. The kernel allows it only to processes of the same
  // user in the same PID namespace. Throws Error(system).
  static MemoryMap open(pid_t pid, int descriptor, std::size_t bytes);

  // Has the system provide the pages of a stretch now, as huge pages where it can: with ordinary pages, address
  // translation costs large tensors up to half of their speed. Offset and size are multiples of huge_page. Works in
  // slices of a bounded time, because signals act only between system calls; `between` is called after each slice and
  // may throw. Throws Error(memory) where the system runs out of memory, rather than have it kill a process.
  void populate(std::size_t offset, std::size_t bytes, const std::function<void()>& between) const;

  // Closes the file descriptor; the mapping stays. Call it once every peer has opened the memory.
  void seal() noexcept;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }

 private:
  void map(std::size_t bytes);
  [[nodiscard]] bool provide(std::size_t offset, std::size_t bytes) const noexcept;
  void release() noexcept;

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  int descriptor_ = -1;
};

inline constexpr std::size_t page = 4096;
inline constexpr std::size_t huge_page = std::size_t{2} << 20;

constexpr std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

// Offer by the creator of memory, and the report of its peers when it is handed over.
struct MemoryOffer {
  std::uint64_t token = 0;  // proves that the right memory was opened
  int descriptor = -1;
  int error = 0;
};

}  // namespace gradientflow::transport

#include "memory_map.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string>
#include <system_error>
#include <utility>

#include "../../base/error.hpp"
#include "memory_limits.hpp"

namespace gradientflow::transport {
namespace {

constexpr std::size_t slice = 8 * huge_page;  // pages provided in one go: at most some tenths of a second

// Constants of Linux 5.14 and 6.1, which older headers lack.
constexpr int advice_populate_write = 23;
constexpr int advice_collapse = 25;

// Reserves a range of addresses that begins at a multiple of huge_page, so that huge pages can be mapped there.
void* reserve_aligned(std::size_t bytes) {
  const std::size_t reserved = bytes + huge_page;
  void* const range = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) {
    return nullptr;
  }
  auto* const begin = static_cast<std::byte*>(range);
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(begin) % huge_page;
  const std::size_t head = misaligned == 0 ? 0 : huge_page - misaligned;
  if (head > 0) {
    munmap(begin, head);
  }
  munmap(begin + head + bytes, reserved - head - bytes);
  return begin + head;
}

}  // namespace

MemoryMap::MemoryMap(MemoryMap&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

MemoryMap& MemoryMap::operator=(MemoryMap&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    descriptor_ = std::exchange(other.descriptor_, -1);
  }
  return *this;
}

MemoryMap::~MemoryMap() { release(); }

MemoryMap MemoryMap::create(std::size_t bytes) {
  MemoryMap memory;
  memory.descriptor_ = memfd_create("gradientflow", MFD_CLOEXEC);
  if (memory.descriptor_ < 0) {
    throw system_error("cannot create node memory (memfd_create)", errno);
  }
  if (ftruncate(memory.descriptor_, static_cast<off_t>(bytes)) != 0) {
    throw system_error("cannot size node memory to " + std::to_string(bytes) + " bytes (ftruncate)", errno);
  }
  memory.map(bytes);
  return memory;
}

MemoryMap MemoryMap::open(pid_t pid, int descriptor, std::size_t bytes) {
  MemoryMap memory;
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(descriptor);
  memory.descriptor_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (memory.descriptor_ < 0) {
    throw system_error("cannot open node memory of process " + std::to_string(pid) + " (" + path + ")", errno);
  }
  memory.map(bytes);
  memory.seal();
  return memory;
}

void MemoryMap::map(std::size_t bytes) {
  void* const place = bytes >= huge_page && bytes % page == 0 ? reserve_aligned(bytes) : nullptr;
  const int flags = MAP_SHARED | (place == nullptr ? 0 : MAP_FIXED);
  void* const address = mmap(place, bytes, PROT_READ | PROT_WRITE, flags, descriptor_, 0);
  if (address == MAP_FAILED) {
    throw system_error("cannot map " + std::to_string(bytes) + " bytes of node memory (mmap)", errno);
  }
  data_ = static_cast<std::byte*>(address);
  size_ = bytes;
  madvise(address, bytes, MADV_HUGEPAGE);  // only a hint
}

// Provides pages. Returns false where there is no memory for them.
bool MemoryMap::provide(std::size_t offset, std::size_t bytes) const noexcept {
  while (madvise(data_ + offset, bytes, advice_populate_write) != 0) {
    if (errno == EINVAL) {  // the system lacks the advice: writing to a page provides it
      for (std::size_t i = 0; i < bytes; i += page) {
        std::byte none{0};  // replaces only 0, as other ranks may use the page already
        std::atomic_ref(data_[offset + i]).compare_exchange_strong(none, none, std::memory_order_relaxed);
      }
      return true;
    }
    if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

// On most systems, shared memory gets no huge pages by itself. But a stretch with at least one page can be collapsed
// into a huge page, in which missing pages are zero. This is much faster than providing every small page first. After
// one failure (the system does not support this, or has no huge page left), the rest of the stretch gets ordinary
// pages.
void MemoryMap::populate(std::size_t offset, std::size_t bytes, const std::function<void()>& between) const {
  const MemoryLimits limits;
  bool huge = true;
  for (const std::size_t end = offset + bytes; offset < end; offset += slice) {
    const std::size_t length = std::min(slice, end - offset);
    bool enough = length <= limits.available();
    for (std::size_t at = 0; huge && enough && at < length; at += huge_page) {
      enough = provide(offset + at, page);
    }
    huge = huge && enough && madvise(data_ + offset, length, advice_collapse) == 0;
    if (!enough || (!huge && !provide(offset, length))) {
      throw Error(ErrorKind::memory, std::generic_category().message(ENOMEM), ENOMEM);
    }
    between();
  }
}

void MemoryMap::seal() noexcept {
  if (descriptor_ >= 0) {
    close(descriptor_);
    descriptor_ = -1;
  }
}

void MemoryMap::release() noexcept {
  seal();
  if (data_ != nullptr) {
    munmap(data_, size_);
    data_ = nullptr;
    size_ = 0;
  }
}

}  // namespace gradientflow::transport

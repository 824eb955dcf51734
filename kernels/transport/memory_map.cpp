#include "memory_map.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "../base/error.hpp"

namespace gradientflow::transport {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;

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
  void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (address == MAP_FAILED) {
    throw system_error("cannot map " + std::to_string(bytes) + " bytes of node memory (mmap)", errno);
  }
  data_ = static_cast<std::byte*>(address);
  size_ = bytes;
  if (bytes >= huge_page) {
    madvise(address, bytes, MADV_HUGEPAGE);  // a hint: fewer TLB misses where the system grants it
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

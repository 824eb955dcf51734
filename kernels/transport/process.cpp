#include "process.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <string>
#include <utility>

#include "../base/error.hpp"
#include "descriptor.hpp"

namespace gradientflow::transport {

namespace {

int open_process(pid_t pid) {
#ifdef SYS_pidfd_open
  return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
#else
  return -1;
#endif
}

}  // namespace

Process::Process(pid_t pid) : pid_(pid), descriptor_(open_process(pid)) {}

Process::Process(Process&& other) noexcept : pid_(other.pid_), descriptor_(std::exchange(other.descriptor_, -1)) {}

Process::~Process() { release(); }

bool Process::alive() const noexcept {
  if (const Descriptor opened(descriptor_ < 0 ? open_process(pid_) : -1); opened || descriptor_ >= 0) {
    pollfd entry{opened ? opened.get() : descriptor_, POLLIN, 0};
    return poll(&entry, 1, 0) == 0;
  }
  return kill(pid_, 0) == 0 || errno == EPERM;
}

void Process::release() noexcept {
  if (const int descriptor = std::exchange(descriptor_, -1); descriptor >= 0) {
    close(descriptor);
  }
}

void Process::read(void* destination, const void* address, std::size_t bytes) const {
  auto* to = static_cast<std::byte*>(destination);
  const auto* from = static_cast<const std::byte*>(address);
  while (bytes > 0) {
    const iovec local{to, bytes};
    // The remote memory is only read; iovec has no const form.
    const iovec remote{const_cast<std::byte*>(from), bytes};  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    const ssize_t copied = process_vm_readv(pid_, &local, 1, &remote, 1, 0);
    if (copied <= 0) {
      throw system_error("cannot read memory of process " + std::to_string(pid_) + " (process_vm_readv)", errno);
    }
    to += copied;
    from += copied;
    bytes -= static_cast<std::size_t>(copied);
  }
}

std::string name_of_this_process() {
  std::array<char, 256> host{};
  const bool is_named = gethostname(host.data(), host.size() - 1) == 0;
  return "process " + std::to_string(getpid()) + " on " + (is_named ? host.data() : "an unnamed host");
}

}  // namespace gradientflow::transport

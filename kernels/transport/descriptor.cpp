#include "descriptor.hpp"

#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <set>

namespace gradientflow::transport {
namespace {

struct OpenDescriptors {
  std::mutex mutex;
  std::set<int> numbers;
};

OpenDescriptors& open_descriptors() {
  static auto* const all = [] {
    auto* const made = new OpenDescriptors;  // NOLINT(*-owning-memory): lives as long as any thread
    pthread_atfork([] { open_descriptors().mutex.lock(); }, [] { open_descriptors().mutex.unlock(); },
                   [] {
                     OpenDescriptors& of_parent = open_descriptors();
                     for (const int number : of_parent.numbers) {
                       ::close(number);
                     }
                     of_parent.numbers.clear();
                     of_parent.mutex.unlock();
                   });
    return made;
  }();
  return *all;
}

}  // namespace

Descriptor::Descriptor(int number) : number_(number) {
  if (number >= 0) {
    OpenDescriptors& all = open_descriptors();
    const std::lock_guard lock(all.mutex);
    forks_ = count_forks();
    all.numbers.insert(number);
  }
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    close();
    number_ = std::exchange(other.number_, -1);
    forks_ = other.forks_;
  }
  return *this;
}

void Descriptor::close() noexcept {
  const int number = std::exchange(number_, -1);
  if (number < 0) {
    return;
  }
  OpenDescriptors& all = open_descriptors();
  const std::lock_guard lock(all.mutex);
  if (forks_ == count_forks()) {  // a forked process has closed its copy already
    all.numbers.erase(number);
    ::close(number);
  }
}

}  // namespace gradientflow::transport

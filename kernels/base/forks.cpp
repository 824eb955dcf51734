#include "forks.hpp"

#include <pthread.h>

#include <atomic>

namespace gradientflow {
namespace {

std::atomic<int> forks{0};

}  // namespace

int count_forks() noexcept {
  static const int watched = pthread_atfork(nullptr, nullptr, [] { ++forks; });
  static_cast<void>(watched);
  return forks.load(std::memory_order_relaxed);
}

}  // namespace gradientflow

// Waits of the ranks of a node for each other.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

#include "../yields.hpp"
#include "node.hpp"

namespace gradientflow::transport {
namespace {

constexpr long nap_nanoseconds = 5'000'000;  // interval at which a sleeping rank looks up

inline void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Counters wrap around; a peer is never ahead by more than a few.
bool is_at(const std::atomic<std::uint32_t>& counter, std::uint32_t target) {
  return static_cast<std::int32_t>(counter.load(std::memory_order_acquire) - target) >= 0;
}

void futex_sleep(std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  const timespec nap{0, nap_nanoseconds};
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, seen, &nap, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

bool Node::is_confirmed_soon() const noexcept {
  for (std::int64_t polls = 0; !is_confirmed(); ++polls) {
    if (polls == spin_) {
      return false;
    }
    pause_core();
  }
  return true;
}

bool Node::meet(std::chrono::microseconds patience) noexcept {
  const std::uint32_t next = sequence_ + 1;
  flags(rank_).coming.store(next, std::memory_order_release);
  const auto end = std::chrono::steady_clock::now() + patience;
  std::int64_t polls = 0;
  Yields yields;
  for (int local = 0; local < size_; ++local) {
    for (; !has_come(local, next); ++polls) {
      if (polls < spin_) {
        pause_core();
      } else if (std::chrono::steady_clock::now() > end || !yields.next()) {
        return false;
      }
    }
  }
  return true;
}

bool Node::has_come(int local, std::uint32_t sequence) const noexcept {
  return is_at(flags(local).coming, sequence) || is_at(announcement_at(local, sequence)->sequence, sequence);
}

std::uint32_t Node::advance() {
  publish(flags(rank_).progress, ++step_);
  return step_;
}

// A sleeper registers in `sleepers` before its last look at the word; a publisher looks at `sleepers` after it has
// written the word. Both orders are sequentially consistent, so no wake-up is lost.
void Node::publish(std::atomic<std::uint32_t>& word, std::uint32_t value) noexcept {
  word.store(value, std::memory_order_seq_cst);
  if (flags(rank_).sleepers.load(std::memory_order_seq_cst) != 0) {
    futex_wake(word);
  }
}

std::uint32_t Node::take_task(int owner, std::uint32_t tasks_each) noexcept {
  std::atomic<std::uint32_t>& taken = tasks(owner).taken;
  return taken.load(std::memory_order_relaxed) < tasks_each ? taken.fetch_add(1, std::memory_order_relaxed)
                                                            : tasks_each;
}

void Node::finish_task(int owner, std::uint32_t tasks_each) noexcept {
  std::atomic<std::uint32_t>& done = tasks(owner).done;
  if (done.fetch_add(1, std::memory_order_seq_cst) + 1 == tasks_each &&
      flags(owner).sleepers.load(std::memory_order_seq_cst) != 0) {
    futex_wake(done);
  }
}

std::atomic<std::uint32_t>& Node::awaited(int local, Event event) const noexcept {
  switch (event) {
    case Event::announcement:
      return announcement_at(local, sequence_)->sequence;
    case Event::tasks:
      return tasks(local).done;
    case Event::step:
      break;
  }
  return flags(local).progress;
}

bool Node::arrived(int local, Event event, std::uint32_t target) const noexcept {
  return is_at(awaited(local, event), target);
}

// Counts the polls of one wait over all ranks: once the wait has begun to yield, it does not spin for the next rank.
void Node::wait_for_all(Event event, std::uint32_t target) {
  std::int64_t polls = 0;
  Yields yields;
  Deadline deadline;
  for (int local = 0; local < size_; ++local) {
    for (; !arrived(local, event, target); ++polls) {
      if (polls < spin_) {
        pause_core();
      } else if (deadline.at != Deadline().at || polls >= spin_ + yields_ || !yields.next()) {
        sleep_until_arrived(local, event, target, deadline);
      }
    }
  }
}

void Node::sleep_until_arrived(int local, Event event, std::uint32_t target, Deadline& deadline) {
  using Clock = std::chrono::steady_clock;
  const std::chrono::duration<double> patience(
      std::min(timeout_, 1e9));  // limit that the clock can count, with a margin
  const auto extend = [&](Clock::time_point from) {
    deadline = {from + std::chrono::duration_cast<Clock::duration>(patience), pulse_of_all()};
  };
  if (deadline.at == Clock::time_point{}) {
    extend(Clock::now());
  }
  std::atomic<std::uint32_t>& word = awaited(local, event);
  std::atomic<std::uint32_t>& sleepers = flags(local).sleepers;
  while (true) {
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t seen = word.load(std::memory_order_seq_cst);
    if (!arrived(local, event, target)) {
      futex_sleep(word, seen);
    }
    sleepers.fetch_sub(1, std::memory_order_seq_cst);
    if (arrived(local, event, target)) {
      return;
    }
    check_not_interrupted();
    check_peers(event, target);
    if (Clock::now() > deadline.at) {
      if (pulse_of_all() == deadline.pulse) {
        raise_timeout(event, target);
      }
      extend(Clock::now());
    }
  }
}

}  // namespace gradientflow::transport

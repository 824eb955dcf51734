// How a communicator serves one call at a time: the templates that its files share.
#pragma once

#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "communicator.hpp"

namespace gradientflow::engine {

// Whether the ranks may be in different states after an error of this kind.
[[nodiscard]] bool breaks(ErrorKind kind);

[[nodiscard]] inline bool sends_messages(const collective::Call& call) {
  return call.choice && !collective::is_inside_node(call.choice->path);
}

// Runs `work`; an error that breaks the communicator is remembered, and the other ranks are told.
template <class Work>
auto Communicator::guarded(Work work) {
  try {
    try {
      return work();
    } catch (const std::bad_alloc&) {
      throw Error(ErrorKind::system, "not enough memory in the middle of a call");
    }
  } catch (const Error& thrown) {
    const Error error = with_unreported_failure(thrown);
    if (breaks(error.kind())) {
      break_off(error);
    }
    throw Error(error);
  } catch (...) {
    break_off(Error(ErrorKind::closed, "a signal's handler ended a call with an exception"));
    throw;
  }
}

// A thread draws a ticket and then reads `serving_`; a thread that has been served advances `serving_` and then reads
// `next_ticket_`. Both are sequentially consistent, so at least one sees the other. The same holds for `usable_`, which
// is read after a ticket is drawn, and for threads that wait until all tickets are served.
template <class Work>
auto Communicator::in_turn(Work work, const Release& release) {
  check_usable();
  const std::uint64_t ticket = next_ticket_.fetch_add(1);
  if (serving_.load() != ticket) {
    if (release) {
      release();
    }
    std::unique_lock lock(mutex_);
    wait_for(lock, [&] { return serving_.load() == ticket; });
  }
  const std::unique_ptr<Communicator, LeaveTurn> turn(this);  // however `work` ends
  check_usable();
  return guarded(std::move(work));
}

// Waits until `reached()`; finishes the open prepared call, if there is one, as it has the turn.
template <class Reached>
void Communicator::wait_for(std::unique_lock<std::mutex>& lock, Reached reached) {
  while (!reached()) {
    if (!finish_open(lock)) {
      turn_.wait(lock);
    }
  }
}

// Runs the work of an asynchronous call, without the lock. Returns its failure, which is kept until a caller is told.
template <class Work>
std::shared_ptr<Failure> Communicator::attempt(std::unique_lock<std::mutex>& lock, Work work) {
  try {
    check_usable();
    lock.unlock();
    guarded(work);
    lock.lock();
    return nullptr;
  } catch (const Error& error) {
    // Nobody need be told of calls that fail only because the communicator is closed or broken already.
    const bool is_consequence = lock.owns_lock() || error.kind() == ErrorKind::closed;
    auto failure = std::make_shared<Failure>(error, is_consequence);
    if (!lock.owns_lock()) {
      lock.lock();
    }
    if (!failure_ || failure_->told) {
      failure_ = failure;
    }
    return failure;
  }
}

}  // namespace gradientflow::engine

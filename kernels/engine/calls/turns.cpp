#include "turns.hpp"

#include <string>
#include <utility>

#include "../../base/thread.hpp"
#include "call_log.hpp"

namespace gradientflow::engine {
namespace {

// True if the ranks may be in different states after an error of this kind.
bool breaks(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::value:
    case ErrorKind::type:
    case ErrorKind::mismatch:
    case ErrorKind::memory:
    case ErrorKind::nonfinite:
      return false;
    case ErrorKind::closed:
    case ErrorKind::peer:
    case ErrorKind::timeout:
    case ErrorKind::mpi:
    case ErrorKind::system:
    case ErrorKind::internal:
      return true;
  }
  return true;
}

}  // namespace

thread_local const Turns* Turns::polling_ = nullptr;

bool Turns::is_polling_here() const { return polling_ == this; }

void Turns::check_usable() const {
  if (is_polling_here()) {
    throw Error(ErrorKind::value,
                "a signal's handler can make no call on the communicator whose call the signal has interrupted");
  }
  if (is_usable_.load()) {
    return;
  }
  if (is_closed_.load() || !broken_) {
    throw Error(ErrorKind::closed, "the communicator is closed");
  }
  throw Error(broken_->kind(), std::string("the communicator cannot be used any more, because of: ") + broken_->what());
}

void Turns::break_off(const Error& error) {
  if (!breaks(error.kind())) {
    return;
  }
  group_.fail(error);
  {
    const std::lock_guard lock(mutex_);
    if (!broken_) {
      broken_ = error;
      if (error.kind() == ErrorKind::peer || error.kind() == ErrorKind::timeout) {
        CallLog::of_process().note_break(error.kind() == ErrorKind::timeout);
      }
    }
    is_usable_ = false;
  }
  devices_.abort();
}

std::shared_ptr<Failure> Turns::unreported_failure() const {
  const std::lock_guard lock(mutex_);
  return failure_ && !failure_->told ? failure_ : nullptr;
}

void Turns::leave() {
  const std::uint64_t next = serving_.load(std::memory_order_relaxed) + 1;  // no other thread writes it now
  serving_.store(next);
  if (next_ticket_.load() != next || draining_.load() > 0) {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }
}

void Turns::leave_concurrent() {
  const std::lock_guard lock(mutex_);
  --concurrent_;
  changed_.notify_all();
}

void Turns::wait_until_served(std::unique_lock<std::mutex>& lock) {
  ++draining_;
  wait_for(lock, [&] { return serving_.load() == next_ticket_.load() && concurrent_ == 0; });
  --draining_;
}

// Appends a call, under the lock.
Turns::Pending& Turns::append(std::function<void(Served&)> work) {
  check_usable();
  if (!progress_thread_.joinable()) {
    progress_thread_ = start_thread("the progress thread of a communicator", [this] { progress(); });
  }
  pending_.push_back({0, std::move(work), std::make_shared<Handle>()});
  pending_.back().ticket =
      next_ticket_.fetch_add(1);  // drawn when nothing can fail any more: each ticket has to be served
  return pending_.back();
}

std::shared_ptr<Handle> Turns::enqueue(const std::function<void(Served&)>& work) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Handle> handle = append(work).handle;
  changed_.notify_all();
  return handle;
}

// Runs the call here if it has the turn. It is then first in the queue, and stays there while this thread has it.
std::shared_ptr<Handle> Turns::run_or_enqueue(const std::function<void(Served&)>& work,
                                              const std::function<bool()>& may_run) {
  std::unique_lock lock(mutex_);
  Pending& mine = append(work);
  std::shared_ptr<Handle> handle = mine.handle;
  mine.is_taken = serving_.load() == mine.ticket;
  if (mine.is_taken) {
    lock.unlock();
    const bool runs = may_run();
    lock.lock();
    mine.is_taken = runs;
  }
  if (!mine.is_taken) {
    changed_.notify_all();
    return handle;
  }
  Served served{};
  std::shared_ptr<Failure> failure = attempt(lock, [&] { work(served); });
  pending_.pop_front();
  if (is_closed_) {
    changed_.notify_all();  // the progress thread ends when the queue is empty
  }
  lock.unlock();
  leave();
  handle->finish(std::move(served), std::move(failure));
  return handle;
}

void Turns::progress() {
  take_short_turns();
  std::unique_lock lock(mutex_);
  while (true) {
    const auto is_next = [&] {
      return !pending_.empty() && pending_.front().ticket == serving_.load() && !pending_.front().is_taken;
    };
    while (!is_next()) {
      if (pending_.empty() && is_closed_) {
        return;
      }
      if (pending_.empty() || !finish_open(lock)) {
        changed_.wait(lock);
      }
    }
    const Pending next = std::move(pending_.front());
    pending_.pop_front();
    Served served{};
    std::shared_ptr<Failure> failure = attempt(lock, [&] { next.work(served); });
    ++serving_;
    changed_.notify_all();
    next.handle->finish(std::move(served), std::move(failure));
  }
}

bool Turns::close(bool drain) {
  std::thread finished;
  bool unserved = false;  // true if peers may wait for calls in vain; served calls end by themselves
  {
    std::unique_lock lock(mutex_);
    if (is_closed_) {
      return false;
    }
    unserved = serving_.load() != next_ticket_.load();
    if (drain) {
      wait_until_served(lock);
    } else {
      group_.interrupt();
    }
    if (is_closed_.exchange(true)) {  // closed by another thread while this one waited
      return false;
    }
    is_usable_ = false;
    changed_.notify_all();
    finished = std::move(progress_thread_);
  }
  if (!drain && unserved) {
    devices_.abort();
  }
  if (finished.joinable()) {
    finished.join();
  }
  std::unique_lock lock(mutex_);
  wait_until_served(lock);  // blocking calls of other threads
  return true;
}

}  // namespace gradientflow::engine

// Turns: the calls of a communicator, from any thread, served one at a time in the order in which they were made.
//
// Every call draws a ticket. A blocking call waits for its turn and runs in the caller's thread; an asynchronous call
// runs in the progress thread, which starts with the first such call and sleeps while there is nothing to do, or in the
// caller's thread where it need not wait there. A blocking call takes no lock if no other call waits before or behind
// it. After an error that leaves the ranks in different states (a dead peer, a timeout, MPI) nothing can be used any
// more: every later call throws, on this rank and, as soon as they wait for it, on the others.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "../../base/error.hpp"
#include "../../collective/group.hpp"
#include "device_calls.hpp"
#include "handle.hpp"

namespace gradientflow::engine {

class PreparedCall;

class Turns {
 public:
  // Releases what the caller holds and other threads want, such as Python's GIL. Called, perhaps more than once, before
  // anything that may take longer than some microseconds: to release and regain a lock costs more than a small call for
  // which the other ranks are ready.
  using Release = std::function<void()>;

  // `explain`: what is said of the error of a call, given that error.
  Turns(collective::Group& group, DeviceCalls& devices, std::function<Error(const Error&)> explain)
      : group_(group), devices_(devices), explain_(std::move(explain)) {}

  // Throws Error(closed), or the error that broke the communicator, if nothing can be called any more.
  void check_usable() const;
  [[nodiscard]] bool is_closed() const { return is_closed_.load(); }
  [[nodiscard]] bool is_broken() const { return !is_usable_.load() && !is_closed_.load(); }

  // Runs `work` in turn, in this thread.
  template <class Work>
  auto run(Work work, const Release& release = {});

  // Runs `work` at once, beside what has the turn: only closing waits for it.
  template <class Work>
  void run_apart(Work work);

  // Runs `work` in turn, in the progress thread. What it writes is kept even if it throws.
  std::shared_ptr<Handle> enqueue(const std::function<void(Served&)>& work);

  // The same, but in this thread if the turn is there, and then `may_run()` says so.
  std::shared_ptr<Handle> run_or_enqueue(const std::function<void(Served&)>& work,
                                         const std::function<bool()>& may_run);

  // Begins the call if it is next in turn; returns whether it was. It keeps the turn until finish(), or the first
  // thread that has to wait for the turn, finishes it.
  bool begin(PreparedCall& prepared);
  // The outcome of a call that was begun, or was enqueued with the handle that it has. Throws the call's error, or
  // Error(timeout) if the time is over first: then the call goes on.
  collective::Outcome finish(PreparedCall& prepared, std::optional<double> timeout, const Release& release);
  [[nodiscard]] bool is_finished(PreparedCall& prepared);

  // Of the first asynchronous call that failed, as long as no caller has been told; else nullptr.
  [[nodiscard]] std::shared_ptr<Failure> unreported_failure() const;

  // Runs the caller's handlers of signals, in the middle of a call that has the turn. A handler can wait neither for
  // that call, nor for one behind it: each that it makes throws Error(value).
  template <class Handlers>
  void poll(const Handlers& handlers) const;
  [[nodiscard]] bool is_polling_here() const;

  // Lets nothing more begin, because of an error, of which the other ranks are told.
  void break_off(const Error& error);

  // Lets nothing more begin, and returns when nothing is under way. `drain`: serves first what waits; otherwise that
  // ends with Error(closed). Returns whether this has closed it: it may have been closed before.
  bool close(bool drain);

 private:
  struct Pending {
    std::uint64_t ticket;
    std::function<void(Served&)> work;
    std::shared_ptr<Handle> handle;
    bool is_taken = false;  // by the thread that has made it, and which may give it back
  };
  struct Leave {
    void operator()(Turns* self) const { self->leave(); }
  };
  struct LeaveApart {
    void operator()(Turns* self) const { self->leave_apart(); }
  };

  template <class Work>
  auto guarded(Work work);
  template <class Work>
  std::shared_ptr<Failure> attempt(std::unique_lock<std::mutex>& lock, Work work);
  template <class Reached>
  void wait_for(std::unique_lock<std::mutex>& lock, Reached reached);
  void wait_until_served(std::unique_lock<std::mutex>& lock);
  void leave();
  void leave_apart();
  void offer(PreparedCall& prepared);
  bool take(PreparedCall& prepared);
  bool finish_open(std::unique_lock<std::mutex>& lock);
  Pending& append(std::function<void(Served&)> work);
  void progress();

  collective::Group& group_;
  DeviceCalls& devices_;
  std::function<Error(const Error&)> explain_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<std::uint64_t> next_ticket_{0};
  std::atomic<std::uint64_t> serving_{0};
  std::atomic<PreparedCall*> open_{nullptr};  // begun; has the turn until a thread finishes it
  std::atomic<int> draining_{0};              // threads that wait until all tickets are served
  std::deque<Pending> pending_;
  int apart_ = 0;                       // threads in run_apart()
  std::atomic<bool> is_usable_{true};   // neither closed nor broken
  std::atomic<bool> is_closed_{false};  // once `is_usable_` is false, this is true or `broken_` is set
  std::optional<Error> broken_;
  std::shared_ptr<Failure> failure_;  // of the first asynchronous call that failed, until a caller is told
  std::thread progress_thread_;
  static thread_local const Turns* polling_;  // in one of its calls this thread runs handlers of signals
};

// Runs `work`; an error that breaks the communicator is remembered, and the other ranks are told.
template <class Work>
auto Turns::guarded(Work work) {
  try {
    try {
      return work();
    } catch (const std::bad_alloc&) {
      throw Error(ErrorKind::system, "not enough memory in the middle of a call");
    }
  } catch (const Error& thrown) {
    const Error error = explain_(thrown);
    break_off(error);
    throw Error(error);
  } catch (...) {
    break_off(Error(ErrorKind::closed, "a signal's handler ended a call with an exception"));
    throw;
  }
}

// A thread draws a ticket and then reads `serving_`; a thread that has been served advances `serving_` and then reads
// `next_ticket_`. Both are sequentially consistent, so at least one sees the other. The same holds for `is_usable_`,
// which is read after a ticket is drawn, and for threads that wait until all tickets are served.
template <class Work>
auto Turns::run(Work work, const Release& release) {
  check_usable();
  const std::uint64_t ticket = next_ticket_.fetch_add(1);
  if (serving_.load() != ticket) {
    if (release) {
      release();
    }
    std::unique_lock lock(mutex_);
    wait_for(lock, [&] { return serving_.load() == ticket; });
  }
  const std::unique_ptr<Turns, Leave> turn(this);  // however `work` ends
  check_usable();
  return guarded(std::move(work));
}

template <class Work>
void Turns::run_apart(Work work) {
  {
    const std::lock_guard lock(mutex_);
    check_usable();
    ++apart_;
  }
  const std::unique_ptr<Turns, LeaveApart> until_the_end(this);
  guarded(std::move(work));
}

template <class Handlers>
void Turns::poll(const Handlers& handlers) const {
  const auto restore = [](const Turns** before) { polling_ = *before; };
  const Turns* before = std::exchange(polling_, this);
  const std::unique_ptr<const Turns*, decltype(restore)> until(&before, restore);
  handlers();
}

// Waits until `reached()`; finishes the open prepared call, if there is one, as it has the turn.
template <class Reached>
void Turns::wait_for(std::unique_lock<std::mutex>& lock, Reached reached) {
  while (!reached()) {
    if (!finish_open(lock)) {
      changed_.wait(lock);
    }
  }
}

// Runs the work of an asynchronous call, without the lock. Returns its failure, which is kept until a caller is told.
template <class Work>
std::shared_ptr<Failure> Turns::attempt(std::unique_lock<std::mutex>& lock, Work work) {
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

// Turns: serve the calls of a communicator, from any thread, one at a time in the order in which they were made.
//
// Every call draws a ticket. A blocking call waits for its turn and runs in the caller's thread. An asynchronous call
// runs in the progress thread, or in the caller's thread if the call need not wait there. The progress thread starts
// with the first such call and sleeps while it has no work. A blocking call takes no lock if no other call waits before
// or after it. An error that leaves the ranks in different states (a dead peer, a timeout, MPI) breaks the
// communicator: every later call throws, on this rank and, as soon as they wait for this rank, on its peers.
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
  // Releases a resource of the caller that other threads want, such as Python's GIL. Called, perhaps repeatedly, before
  // anything that may take longer than some microseconds: releasing and regaining a lock costs more than a small call
  // for which the peers are ready.
  using Release = std::function<void()>;

  // `explain`: returns the error to report, given the error of a call.
  Turns(collective::Group& group, DeviceCalls& devices, std::function<Error(const Error&)> explain)
      : group_(group), devices_(devices), explain_(std::move(explain)) {}

  // Throws Error(closed), or the error that broke the communicator, if it cannot be used any more.
  void check_usable() const;
  [[nodiscard]] bool is_closed() const { return is_closed_.load(); }
  [[nodiscard]] bool is_broken() const { return !is_usable_.load() && !is_closed_.load(); }

  // Runs `work` in turn, in this thread.
  template <class Work>
  auto run(Work work, const Release& release = {});

  // Runs `work` at once, beside the call that has the turn. Only closing waits for `work`.
  template <class Work>
  void run_concurrently(Work work);

  // Runs `work` in turn, in the progress thread. Its output is kept even if it throws.
  std::shared_ptr<Handle> enqueue(const std::function<void(Served&)>& work);

  // Runs `work` in turn; in this thread if its turn has come and `may_run()` returns true.
  std::shared_ptr<Handle> run_or_enqueue(const std::function<void(Served&)>& work,
                                         const std::function<bool()>& may_run);

  // Begins the call if it is next in turn, and then returns true. The call keeps the turn until finish(), or the first
  // thread that waits for the turn, finishes the call.
  bool begin(PreparedCall& prepared);
  // Returns the outcome of a call that was begun, or was enqueued with its handle. Throws the call's error, or
  // Error(timeout) if the timeout passes first; the call then continues.
  collective::CallResult finish(PreparedCall& prepared, std::optional<double> timeout, const Release& release);
  [[nodiscard]] bool is_finished(PreparedCall& prepared);

  // Returns the failure of the first asynchronous call that failed, until a caller is told; otherwise nullptr.
  [[nodiscard]] std::shared_ptr<Failure> unreported_failure() const;

  // Runs the caller's signal handlers, in the middle of a call that has the turn. A handler can wait neither for that
  // call nor for a later call: each call that a handler makes throws Error(value).
  template <class Handlers>
  void poll(const Handlers& handlers) const;
  [[nodiscard]] bool is_polling_here() const;

  // Lets no further call begin, because of an error, and tells the peers.
  void break_off(const Error& error);

  // Lets no further call begin, and returns when no call is under way. `drain`: serves waiting calls first; otherwise
  // they end with Error(closed). Returns false if the turns were already closed.
  bool close(bool drain);

 private:
  struct Pending {
    std::uint64_t ticket;
    std::function<void(Served&)> work;
    std::shared_ptr<Handle> handle;
    bool is_taken = false;  // claimed by the thread that made it, which may give it back
  };
  struct Leave {
    void operator()(Turns* self) const { self->leave(); }
  };
  struct LeaveConcurrent {
    void operator()(Turns* self) const { self->leave_concurrent(); }
  };

  template <class Work>
  auto guarded(Work work);
  template <class Work>
  std::shared_ptr<Failure> attempt(std::unique_lock<std::mutex>& lock, Work work);
  template <class Reached>
  void wait_for(std::unique_lock<std::mutex>& lock, Reached reached);
  void wait_until_served(std::unique_lock<std::mutex>& lock);
  void leave();
  void leave_concurrent();
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
  std::atomic<PreparedCall*> open_{nullptr};  // call begun; has the turn until a thread finishes it
  std::atomic<int> draining_{0};              // threads that wait until all tickets are served
  std::deque<Pending> pending_;
  int concurrent_ = 0;                  // threads in run_concurrently()
  std::atomic<bool> is_usable_{true};   // neither closed nor broken
  std::atomic<bool> is_closed_{false};  // once `is_usable_` is false, this is true or `broken_` is set
  std::optional<Error> broken_;
  std::shared_ptr<Failure> failure_;  // failure of the first asynchronous call that failed, until a caller is told
  std::thread progress_thread_;
  static thread_local const Turns* polling_;  // instance with a call in which this thread runs signal handlers
};

// Runs `work`; an error that breaks the communicator is remembered, and the peers are told.
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

// Runs `work` in turn. A thread draws a ticket and then reads `serving_`; a served thread advances `serving_` and then
// reads `next_ticket_`. Both are sequentially consistent, so they cannot both miss each other's write. The same holds
// for `is_usable_`, read after a ticket is drawn, and for threads that wait until all tickets are served.
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
void Turns::run_concurrently(Work work) {
  {
    const std::lock_guard lock(mutex_);
    check_usable();
    ++concurrent_;
  }
  const std::unique_ptr<Turns, LeaveConcurrent> until_the_end(this);
  guarded(std::move(work));
}

template <class Handlers>
void Turns::poll(const Handlers& handlers) const {
  const auto restore = [](const Turns** before) { polling_ = *before; };
  const Turns* before = std::exchange(polling_, this);
  const std::unique_ptr<const Turns*, decltype(restore)> until(&before, restore);
  handlers();
}

// Waits until `reached()`. Meanwhile finishes the open prepared call, if any, since that call has the turn.
template <class Reached>
void Turns::wait_for(std::unique_lock<std::mutex>& lock, Reached reached) {
  while (!reached()) {
    if (!finish_open(lock)) {
      changed_.wait(lock);
    }
  }
}

// Runs the work of an asynchronous call without the lock. Returns its failure, which is kept until a caller is told.
template <class Work>
std::shared_ptr<Failure> Turns::attempt(std::unique_lock<std::mutex>& lock, Work work) {
  try {
    check_usable();
    lock.unlock();
    guarded(work);
    lock.lock();
    return nullptr;
  } catch (const Error& error) {
    // No caller need be told of calls that fail only because the communicator is already closed or broken.
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

// Turns: which call is served next, what an error breaks, and prepared calls.
#include <string>
#include <utility>

#include "prepared_call.hpp"
#include "turns.hpp"

namespace gradientflow::engine {

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

void Communicator::break_off(const Error& error) {
  group_->fail(error);
  {
    const std::lock_guard lock(mutex_);
    if (!broken_) {
      broken_ = error;
    }
    usable_ = false;
  }
  abort_on_device();
}

std::shared_ptr<Failure> Communicator::unreported_failure() const {
  {
    const std::lock_guard lock(mutex_);
    if (failure_ && !failure_->told) {
      return failure_;
    }
  }
  for (const auto& copy : duplicates()) {
    if (auto failure = copy->unreported_failure()) {
      return failure;
    }
  }
  return nullptr;
}

// A timeout may come from an earlier asynchronous call that failed, and whose error no thread here has asked for: the
// other ranks may know of it and make other calls.
Error Communicator::with_unreported_failure(const Error& error) const {
  if (error.kind() != ErrorKind::timeout) {
    return error;
  }
  const auto failure = unreported_failure();
  if (failure == nullptr) {
    return error;
  }
  return {error.kind(),
          std::string(error.what()) + "; before that, an asynchronous call of rank " + std::to_string(rank()) +
              " had failed, and nobody has waited for its handle: " + failure->error.what(),
          error.code()};
}

void Communicator::leave_turn() {
  const std::uint64_t next = serving_.load(std::memory_order_relaxed) + 1;  // nobody else writes it now
  serving_.store(next);
  if (next_ticket_.load() != next || draining_.load() > 0) {
    const std::lock_guard lock(mutex_);
    turn_.notify_all();
  }
}

// Finishes the open prepared call. Returns whether there was one: its own thread may have finished it.
bool Communicator::finish_open(std::unique_lock<std::mutex>& lock) {
  PreparedCall* const prepared = open_.exchange(nullptr);
  if (prepared == nullptr) {
    return false;
  }
  if (prepared->handle_ == nullptr) {
    prepared->handle_ = std::make_shared<Handle>();
  }
  const std::shared_ptr<Handle> handle = prepared->handle_;
  collective::Outcome outcome{};
  std::shared_ptr<Failure> failure = attempt(lock, [&] { outcome = group_->finish(prepared->call_); });
  lock.unlock();
  leave_turn();
  handle->finish(outcome, {}, nullptr, std::move(failure));
  lock.lock();
  return true;
}

void Communicator::wait_until_served(std::unique_lock<std::mutex>& lock) {
  ++draining_;
  wait_for(lock, [&] { return serving_.load() == next_ticket_.load() && apart_ == 0; });
  --draining_;
}

// Begins the call if it is next in turn. Otherwise it goes to the progress thread, as the calls before it may take
// long.
void Communicator::start(PreparedCall& prepared, const Release& release) {
  const collective::Call& call = prepared.call_;
  const auto hand_over = [&] {
    if (release) {
      release();
    }
    prepared.handle_ = submit(call);
  };
  std::uint64_t ticket = next_ticket_.load();
  if (!collective::Group::can_begin(call) || recorded_.load(std::memory_order_relaxed) || serving_.load() != ticket) {
    hand_over();
    return;
  }
  admit(call);
  check_usable();
  if (!next_ticket_.compare_exchange_strong(ticket, ticket + 1)) {
    hand_over();
    return;
  }
  prepared.handle_ = nullptr;
  try {
    check_usable();
    guarded([&] { group_->begin(call); });
  } catch (...) {
    leave_turn();
    throw;
  }
  offer(prepared);
}

// Offers the call to any thread that wants the turn. Memory order as in leave_turn.
void Communicator::offer(PreparedCall& prepared) {
  open_.store(&prepared);
  if (next_ticket_.load() != serving_.load() + 1 || draining_.load() > 0) {
    const std::lock_guard lock(mutex_);
    turn_.notify_all();
  }
}

// Takes an offered call back, unless another thread has it.
bool Communicator::take(PreparedCall& prepared) {
  PreparedCall* open = &prepared;
  return open_.compare_exchange_strong(open, nullptr);
}

collective::Outcome Communicator::finish(PreparedCall& prepared, std::optional<double> timeout,
                                         const Release& release) {
  check_process();
  const bool mine = take(prepared);
  if (release && !(mine && collective::Group::is_short(prepared.call_) && group_->is_confirmed_soon())) {
    release();
  }
  if (mine) {
    if (!timeout || group_->is_confirmed() || !usable_.load()) {
      const std::unique_ptr<Communicator, LeaveTurn> turn(this);
      prepared.handle_ = nullptr;
      check_usable();
      return guarded([&] { return group_->finish(prepared.call_, release); });
    }
    offer(prepared);
  }
  std::shared_ptr<Handle> handle;
  bool hand_over = false;
  {
    const std::lock_guard lock(mutex_);
    hand_over = prepared.handle_ == nullptr;
    if (hand_over) {
      prepared.handle_ = std::make_shared<Handle>();
    }
    handle = prepared.handle_;
  }
  if (hand_over) {  // to the progress thread, by an empty call behind it
    try {
      enqueue([](Served& /*served*/) {});
    } catch (const Error&) {
      return finish(prepared, {}, {});
    }
  }
  handle->wait(timeout);
  return handle->outcome();
}

bool Communicator::is_finished(PreparedCall& prepared) {
  check_process();
  if (take(prepared)) {
    const bool is_confirmed = group_->is_confirmed();
    offer(prepared);
    return is_confirmed;
  }
  const std::lock_guard lock(mutex_);
  return prepared.handle_ != nullptr && prepared.handle_->done();
}

}  // namespace gradientflow::engine

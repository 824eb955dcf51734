// Prepared calls: each keeps the turn from its beginning until a thread finishes it.
#include <utility>

#include "prepared_call.hpp"
#include "turns.hpp"

namespace gradientflow::engine {

bool Turns::begin(PreparedCall& prepared) {
  std::uint64_t ticket = next_ticket_.load();
  if (serving_.load() != ticket) {
    return false;
  }
  check_usable();
  if (!next_ticket_.compare_exchange_strong(ticket, ticket + 1)) {
    return false;
  }
  prepared.handle_ = nullptr;
  try {
    check_usable();
    guarded([&] { group_.begin(prepared.call_); });
  } catch (...) {
    leave();
    throw;
  }
  offer(prepared);
  return true;
}

// Offers the call to any thread that wants the turn. Memory order as in leave().
void Turns::offer(PreparedCall& prepared) {
  open_.store(&prepared);
  if (next_ticket_.load() != serving_.load() + 1 || draining_.load() > 0) {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }
}

// Takes an offered call back, unless another thread has it.
bool Turns::take(PreparedCall& prepared) {
  PreparedCall* open = &prepared;
  return open_.compare_exchange_strong(open, nullptr);
}

// Finishes the open prepared call. Returns false if no call is open: the thread that started it may have finished it.
bool Turns::finish_open(std::unique_lock<std::mutex>& lock) {
  PreparedCall* const prepared = open_.exchange(nullptr);
  if (prepared == nullptr) {
    return false;
  }
  if (prepared->handle_ == nullptr) {
    prepared->handle_ = std::make_shared<Handle>();
  }
  const std::shared_ptr<Handle> handle = prepared->handle_;
  Served served{};
  std::shared_ptr<Failure> failure = attempt(lock, [&] { served.outcome = group_.finish(prepared->call_); });
  lock.unlock();
  leave();
  handle->finish(std::move(served), std::move(failure));
  lock.lock();
  return true;
}

collective::CallResult Turns::finish(PreparedCall& prepared, std::optional<double> timeout, const Release& release) {
  const bool mine = take(prepared);
  if (release && !(mine && collective::Group::is_short(prepared.call_) && group_.is_confirmed_soon())) {
    release();
  }
  if (mine) {
    if (!timeout || group_.is_confirmed() || !is_usable_.load()) {
      const std::unique_ptr<Turns, Leave> turn(this);
      prepared.handle_ = nullptr;
      check_usable();
      return guarded([&] { return group_.finish(prepared.call_, release); });
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
  if (hand_over) {  // let the progress thread finish it, by an empty call behind it
    try {
      enqueue([](Served& /*served*/) {});
    } catch (const Error&) {
      return finish(prepared, {}, {});
    }
  }
  handle->wait(timeout);
  return handle->outcome();
}

bool Turns::is_finished(PreparedCall& prepared) {
  if (take(prepared)) {
    const bool is_confirmed = group_.is_confirmed();
    offer(prepared);
    return is_confirmed;
  }
  const std::lock_guard lock(mutex_);
  return prepared.handle_ != nullptr && prepared.handle_->done();
}

}  // namespace gradientflow::engine

#include <algorithm>
#include <string>
#include <utility>

#include "../../compute/kernels.hpp"
#include "../calls/waiting.hpp"
#include "server_worker.hpp"

namespace gradientflow::engine {

std::uint64_t ServerWorker::pull(bool exact) {
  Lock lock(mutex_);
  check_usable();
  check_not_finishing();
  take_notes();
  return begin_pull(exact, 0);
}

void ServerWorker::check_no_pull() const {
  if (!has_come()) {
    throw Error(ErrorKind::value, "pull " + std::to_string(pulls_) + " of rank " + std::to_string(rank()) +
                                      " is still under way: wait for it before the next");
  }
}

std::uint64_t ServerWorker::begin_pull(bool exact, std::uint64_t end) {
  expect_answers(exact);
  ask_all({.kind = NoteKind::pull, .exact = exact, .number = pulls_, .pushes = end > 0 ? 0 : pushes_, .round = end});
  return pulls_;
}

void ServerWorker::expect_answers(bool exact) {
  check_no_pull();
  const std::lock_guard not_taking(taking_);
  give_back_leases();
  exact_ = exact;
  gathered_.assign(shared_.layout.tensors(), false);
  answers_ = 0;
  has_answered_.assign(servers(), false);
  answers_under_way_.clear();
  const std::size_t item = exact ? sizeof(float) : size_of(shared_.wire);
  for (std::size_t s = 0; s < servers(); ++s) {
    for (std::size_t r = 0; r < shared_.layout.ranges().size(); ++r) {
      const Piece& piece = shared_.layout.piece(r, s);
      answers_under_way_.push_back(
          is_here(s) || piece.count == 0
              ? nullptr
              : shared_.mailbox->receive(shared_.roles.servers[s], shared_.tags.pulled(),
                                         shared_.memory.pull_buffer(rank()) + piece.flat * item, piece.count * item,
                                         shared_.memory.owner(), transport::Route::in_parts));
    }
  }
  ++pulls_;
}

void ServerWorker::ask_all(const Note& note) {
  for (std::size_t k = 0; k < servers(); ++k) {
    send_to((static_cast<std::size_t>(rank()) + k) % servers(), note);
  }
}

void ServerWorker::give_back_leases() {
  for (std::size_t s = 0; s < servers(); ++s) {
    if (is_here(s)) {
      shared_.memory.word(s, rank()).lease.store(0, std::memory_order_release);
    }
  }
}

void ServerWorker::wait_for_pull(std::uint64_t pull, Seconds timeout) {
  check_timeout(timeout);
  or_naming_the_missing([&] {
    Lock lock(mutex_);
    if (pull < pulls_) {
      return;
    }
    await_pull(lock, pull, timeout);
  });
}

// Waits until the last pull has arrived, or another pull has begun.
void ServerWorker::await_pull(Lock& lock, std::uint64_t pull, Seconds timeout) {
  wait(lock, timeout, "pull " + std::to_string(pull), [&] { return pull != pulls_ || has_come(); });
  for (const auto& transfer : answers_under_way_) {
    if (transfer != nullptr && pull == pulls_) {
      transfer->check();
    }
  }
}

bool ServerWorker::has_come(std::uint64_t pull) {
  shared_.mailbox->poll();
  const Lock lock(mutex_);
  check_usable();
  take_notes();
  check_usable();
  return pull < pulls_ || has_come();
}

void ServerWorker::check_pull(std::uint64_t pull) const {
  if (pull != pulls_) {
    throw Error(ErrorKind::value, "pull " + std::to_string(pull) + " has given way to pull " + std::to_string(pulls_));
  }
}

bool ServerWorker::has_come() const { return answers_ == servers() && have_ended(answers_under_way_); }

// Waits until a part has arrived, or throws.
void ServerWorker::await_part(Lock& lock, std::uint64_t pull, const TensorPart& part, Seconds timeout) {
  const auto is_there = [&] {
    return pull != pulls_ || (transfer_of(part) != nullptr ? transfer_of(part)->ended() : has_answered_[part.server]);
  };
  if (!is_there()) {
    wait(lock, timeout, "pull " + std::to_string(pull), is_there);
  }
  check_pull(pull);
  if (transfer_of(part) != nullptr) {
    transfer_of(part)->check();
  }
}

// Returns the address of a part that has arrived: in the leased version, or in the worker's pull buffer.
const std::byte* ServerWorker::address_of(const TensorPart& part) const {
  const std::size_t item = size_of(pulled());
  if (!is_here(part.server)) {
    return shared_.memory.pull_buffer(rank()) + part.flat * item;
  }
  const std::size_t version = shared_.memory.word(part.server, rank()).lease.load(std::memory_order_acquire) - 1;
  const std::byte* const weights =
      exact_ ? reinterpret_cast<const std::byte*>(shared_.memory.weights(part.server, version))
             : shared_.memory.wire_weights(part.server, version);
  return weights + part.shard * item;
}

void ServerWorker::take(std::uint64_t pull, std::size_t tensor, float* weights, Seconds timeout) {
  check_timeout(timeout);
  or_naming_the_missing([&] {
    Lock lock(mutex_);
    check_usable();
    check_pull(pull);
    check_tensor(tensor);
    const std::size_t all = shared_.layout.counts()[tensor] * sizeof(float);
    for (const TensorPart& part : shared_.layout.parts_of_tensor(tensor)) {
      await_part(lock, pull, part, timeout);
      const DType dtype = pulled();
      const std::byte* const source = address_of(part);
      {
        const std::lock_guard one_at_a_time(taking_);  // locked after mutex_, as in expect_answers
        lock.unlock();
        if (dtype == DType::float32) {
          compute::copy(weights + part.begin, source, part.count * sizeof(float), store_for(all));
        } else {
          compute::cast(weights + part.begin, DType::float32, source, dtype, part.count, 1.0F);
        }
      }
      lock.lock();
    }
  });
}

ServerWorker::Weights ServerWorker::weights(std::uint64_t pull, std::size_t tensor, Seconds timeout) {
  check_timeout(timeout);
  return or_naming_the_missing([&] {
    Lock lock(mutex_);
    check_usable();
    check_pull(pull);
    check_tensor(tensor);
    await_pull(lock, pull, timeout);
    check_pull(pull);
    const auto& parts = shared_.layout.parts_of_tensor(tensor);
    if (parts.empty()) {
      return Weights{nullptr, pulled()};
    }
    bool lie_together = true;  // parts in one shard; always so with a single server
    for (std::size_t i = 1; i < parts.size() && is_here(parts.front().server); ++i) {
      lie_together = lie_together && parts[i].server == parts[0].server &&
                     parts[i].shard == parts[i - 1].shard + parts[i - 1].count;
    }
    if (is_here(parts.front().server) && lie_together) {
      return Weights{address_of(parts.front()), pulled()};
    }
    const std::size_t item = size_of(pulled());
    std::byte* const buffer = shared_.memory.pull_buffer(rank());
    if (!gathered_[tensor]) {
      if (!std::exchange(has_pull_buffer_pages_, true)) {
        shared_.memory.provide_pull_buffer(rank());
      }
      for (const TensorPart& part : parts) {
        if (is_here(part.server)) {
          compute::copy(buffer + part.flat * item, address_of(part), part.count * item,
                        store_for(shared_.layout.counts()[tensor] * item));
        }
      }
      gathered_[tensor] = true;
    }
    return Weights{buffer + shared_.layout.offset(tensor) * item, pulled()};
  });
}

void ServerWorker::check_tensor(std::size_t tensor) const {
  if (tensor >= shared_.layout.tensors()) {
    throw Error(ErrorKind::value, "there is no tensor " + std::to_string(tensor) + ": the parameter server has " +
                                      std::to_string(shared_.layout.tensors()));
  }
}

std::uint64_t ServerWorker::finish(Seconds timeout) {
  check_timeout(timeout);
  Lock lock(mutex_);
  check_usable();
  if (ready_.count() > 0) {
    throw Error(ErrorKind::value, "a push has begun: end it by push before finish");
  }
  if (!finishing_) {  // otherwise an earlier finish timed out after it had sent depart
    wait(lock, timeout, "pull " + std::to_string(pulls_), [this] { return has_come(); });
    send_to(0, {.kind = NoteKind::depart});
    finishing_ = begin_pull(true, ++ends_);
  }
  const std::uint64_t pull = *finishing_;
  lock.unlock();
  wait_for_pull(pull, timeout);
  lock.lock();
  finishing_.reset();
  return pull;
}

}  // namespace gradientflow::engine

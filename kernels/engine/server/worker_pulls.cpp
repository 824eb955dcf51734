#include <sched.h>

#include <algorithm>
#include <string>

#include "../../compute/kernels.hpp"
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
  const std::lock_guard nobody_takes(taking_);
  give_back_leases();
  exact_ = exact;
  answers_ = 0;
  has_answered_.assign(servers(), false);
  answers_under_way_.clear();
  const std::size_t item = exact ? sizeof(float) : size_of(shared_.wire);
  for (std::size_t s = 0; s < servers(); ++s) {
    for (std::size_t r = 0; r < shared_.layout.ranges().size(); ++r) {
      const Piece& piece = shared_.layout.piece(r, s);
      answers_under_way_.push_back(is_here(s) || piece.count == 0
                                       ? nullptr
                                       : shared_.mailbox->receive(shared_.roles.servers[s], shared_.tags.pulled(),
                                                                  shared_.memory.place(rank(), s) + piece.shard * item,
                                                                  piece.count * item, shared_.memory.segment(),
                                                                  transport::Way::in_parts));
    }
  }
  ++pulls_;
}

void ServerWorker::ask_all(const Note& note) {
  for (std::size_t k = 0; k < servers(); ++k) {
    send_to((static_cast<std::size_t>(rank()) + k) % servers(), note);
  }
}

// What the server is just moving is moved in a moment.
void ServerWorker::give_back_leases() {
  for (std::size_t s = 0; s < servers(); ++s) {
    if (!is_here(s)) {
      continue;
    }
    std::atomic<std::uint64_t>& lease = shared_.memory.word(s, rank()).lease;
    std::uint64_t now = lease.load(std::memory_order_acquire);
    while (now % 8 == ServerWord::moving || !lease.compare_exchange_weak(now, ServerWord::none)) {
      sched_yield();
      now = lease.load(std::memory_order_acquire);
    }
  }
}

void ServerWorker::wait_for_pull(std::uint64_t pull, Seconds timeout) {
  or_naming_the_missing([&] {
    Lock lock(mutex_);
    if (pull < pulls_) {
      return;
    }
    wait(lock, timeout, "pull " + std::to_string(pull), [this] { return has_come(); });
    for (const auto& letter : answers_under_way_) {
      if (letter != nullptr) {
        letter->check();
      }
    }
  });
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

void ServerWorker::take(std::uint64_t pull, std::size_t tensor, float* weights, Seconds timeout) {
  or_naming_the_missing([&] {
    Lock lock(mutex_);
    check_usable();
    check_pull(pull);
    if (tensor >= shared_.layout.tensors()) {
      throw Error(ErrorKind::value, "there is no tensor " + std::to_string(tensor) + ": the parameter server has " +
                                        std::to_string(shared_.layout.tensors()));
    }
    for (const TensorPart& part : shared_.layout.parts_of_tensor(tensor)) {
      const auto is_there = [&] {
        return pull != pulls_ || (letter_of(part) != nullptr ? letter_of(part)->ended() : has_answered_[part.server]);
      };
      if (!is_there()) {
        wait(lock, timeout, "pull " + std::to_string(pull), is_there);
      }
      check_pull(pull);
      if (letter_of(part) != nullptr) {
        letter_of(part)->check();
      }
      const bool exact = exact_;
      {
        const std::lock_guard one_at_a_time(taking_);  // after mutex_, as whoever begins a pull
        lock.unlock();
        copy_weights(part, exact, weights);
      }
      lock.lock();
    }
  });
}

// With taking_ held.
void ServerWorker::copy_weights(const TensorPart& part, bool exact, float* weights) {
  const DType dtype = exact ? DType::float32 : shared_.wire;
  const std::byte* source = shared_.memory.place(rank(), part.server);
  std::atomic<std::uint64_t>* lease = nullptr;
  const std::uint64_t version = versions_[part.server];
  std::uint64_t held = ServerWord::held + 8 * version;
  if (is_here(part.server)) {
    lease = &shared_.memory.word(part.server, rank()).lease;
    while (!lease->compare_exchange_weak(held, ServerWord::reading + 8 * version)) {
      if (held % 8 == ServerWord::moved) {
        lease = nullptr;
        break;
      }
      held = ServerWord::held + 8 * version;
      sched_yield();
    }
    if (lease != nullptr) {
      source = dtype == DType::float32
                   ? reinterpret_cast<const std::byte*>(shared_.memory.weights(part.server, version))
                   : shared_.memory.travelling(part.server, version);
    }
  }
  source += part.shard * size_of(dtype);
  if (dtype == DType::float32) {
    const std::size_t all = shared_.layout.counts()[part.tensor] * sizeof(float);
    compute::copy(weights + part.begin, source, part.count * sizeof(float), store_for(all));
  } else {
    compute::cast(weights + part.begin, DType::float32, source, dtype, part.count, 1.0F);
  }
  if (lease != nullptr) {
    lease->store(held, std::memory_order_release);
  }
}

std::uint64_t ServerWorker::finish(Seconds timeout) {
  Lock lock(mutex_);
  check_usable();
  if (ready_.count() > 0) {
    throw Error(ErrorKind::value, "a push has begun: end it by push before finish");
  }
  if (!finishing_) {  // else it has departed: the last time the others did not come
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

#include "communicator.hpp"

#include <pthread.h>

#include <atomic>
#include <new>
#include <string>
#include <utility>

namespace gradientflow::engine {
namespace {

using transport::CallKind;

// Whether the ranks may be in different states after an error of this kind.
bool breaks(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::value:
    case ErrorKind::type:
    case ErrorKind::mismatch:
    case ErrorKind::memory:
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

// How many forks lie between this process and the first one that asked.
std::atomic<int> forks{0};

int count_forks() {
  static const int watched = pthread_atfork(nullptr, nullptr, [] { ++forks; });
  static_cast<void>(watched);
  return forks.load(std::memory_order_relaxed);
}

}  // namespace

Communicator::Communicator(MPI_Comm comm, const Config& config)
    : group_(std::make_unique<collective::Group>(comm, config)), forks_(count_forks()) {}

// In a forked process it is never destroyed: neither MPI nor the parent's flags may be touched there, and a lock or
// condition variable that was in use at the fork stays so.
std::shared_ptr<Communicator> Communicator::make(MPI_Comm comm, const Config& config) {
  return {new Communicator(comm, config), [](const Communicator* communicator) {
            if (communicator->forks_ == count_forks()) {
              delete communicator;
            }
          }};
}

Communicator::~Communicator() { close(false); }

void Communicator::check_process() const {
  if (forks_ != forks.load(std::memory_order_relaxed)) {
    throw Error(ErrorKind::closed, "the communicator belongs to the process that this one was forked from");
  }
}

void Communicator::check(const collective::Call& call) const {
  check_process();
  const transport::Signature& signature = call.signature;
  switch (signature.kind) {
    case CallKind::allreduce:
    case CallKind::reduce_scatter:
      check_reducible(signature.dtype, signature.op);
      break;
    case CallKind::reduce:
      check_reducible(signature.dtype, signature.op);
      [[fallthrough]];
    case CallKind::broadcast:
      if (signature.root < 0 || signature.root >= size()) {
        throw Error(ErrorKind::value, "root " + std::to_string(signature.root) + " is not a rank: ranks are 0 to " +
                                          std::to_string(size() - 1));
      }
      break;
    case CallKind::allgather:
    case CallKind::barrier:
    case CallKind::allocate:
      break;
  }
  if (group_->path_of(signature, false) == collective::Path::mpi) {  // throws where the algorithm cannot serve it
    group_->mpi().check_not_finalized();
  }
}

void Communicator::check_usable() const {
  if (closed_) {
    throw Error(ErrorKind::closed, "the communicator is closed");
  }
  if (broken_) {
    throw Error(broken_->kind(),
                std::string("the communicator cannot be used any more, because of: ") + broken_->what());
  }
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
  } catch (const Error& error) {
    if (breaks(error.kind())) {
      group_->node().fail();
      const std::lock_guard lock(mutex_);
      if (!broken_) {
        broken_ = error;
      }
    }
    throw;
  }
}

template <class Work>
auto Communicator::in_turn(Work work) {
  {
    std::unique_lock lock(mutex_);
    check_usable();
    const std::uint64_t ticket = next_ticket_++;
    if (serving_ != ticket) {
      ++waiting_;
      turn_.wait(lock, [&] { return serving_ == ticket; });
      --waiting_;
      if (closed_ || broken_) {
        ++serving_;
        turn_.notify_all();
        check_usable();
      }
    }
  }
  struct LeaveTurn {
    void operator()(Communicator* self) const { self->leave_turn(); }
  };
  const std::unique_ptr<Communicator, LeaveTurn> turn(this);  // however `work` ends
  return guarded(std::move(work));
}

void Communicator::leave_turn() {
  const std::lock_guard lock(mutex_);
  ++serving_;
  if (waiting_ > 0 || !pending_.empty()) {
    turn_.notify_all();
  }
}

collective::Path Communicator::run(const collective::Call& call) {
  check(call);
  return in_turn([&] { return group_->run(call); });
}

std::shared_ptr<transport::Segment> Communicator::allocate(std::size_t bytes) {
  check_process();
  return in_turn([&] { return group_->allocate(bytes); });
}

std::shared_ptr<Handle> Communicator::submit(const collective::Call& call) {
  check(call);
  if (group_->path_of(call.signature, false) == collective::Path::mpi && !transport::mpi_thread_multiple()) {
    throw Error(ErrorKind::value,
                "asynchronous calls over MPI need MPI_THREAD_MULTIPLE, which this MPI was not initialised with");
  }
  auto handle = std::make_shared<Handle>();
  const std::lock_guard lock(mutex_);
  check_usable();
  if (!progress_thread_.joinable()) {
    progress_thread_ = std::thread([this] { progress(); });
  }
  pending_.push_back({next_ticket_, call, handle});
  ++next_ticket_;
  turn_.notify_all();
  return handle;
}

void Communicator::progress() {
  std::unique_lock lock(mutex_);
  while (true) {
    turn_.wait(lock, [&] {
      return (!pending_.empty() && pending_.front().ticket == serving_) || (closed_ && pending_.empty());
    });
    if (pending_.empty()) {
      return;
    }
    const Pending next = std::move(pending_.front());
    pending_.pop_front();
    std::optional<Error> failure;
    try {
      check_usable();
      lock.unlock();
      guarded([&] { group_->run(next.call); });
      lock.lock();
    } catch (const Error& error) {
      failure = error;
      if (!lock.owns_lock()) {
        lock.lock();
      }
    }
    ++serving_;
    turn_.notify_all();
    next.handle->finish(std::move(failure));
  }
}

void Communicator::close(bool drain) noexcept {
  if (forks_ != count_forks()) {
    return;
  }
  std::thread finished;
  {
    std::unique_lock lock(mutex_);
    if (closed_) {
      return;
    }
    if (drain) {
      ++waiting_;
      turn_.wait(lock, [&] { return serving_ == next_ticket_; });
      --waiting_;
    } else {
      group_->interrupt();
    }
    closed_ = true;
    turn_.notify_all();
    finished = std::move(progress_thread_);
  }
  if (finished.joinable()) {
    finished.join();
  }
  std::unique_lock lock(mutex_);
  ++waiting_;
  turn_.wait(lock, [&] { return serving_ == next_ticket_; });  // blocking calls of other threads
  --waiting_;
  group_->node().close();
}

bool Communicator::closed() const {
  if (forks_ != count_forks()) {
    return true;
  }
  const std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace gradientflow::engine

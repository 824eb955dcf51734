#include "nccl_watch.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "../../base/text.hpp"
#include "../../base/thread.hpp"
#include "../../base/waits.hpp"

namespace gradientflow::collective {
namespace {

namespace cuda = compute::cuda;
using namespace std::chrono_literals;

constexpr auto interval = 20ms;
constexpr std::size_t many = 64;  // number of calls under way from which on events of ended calls are reused

}  // namespace

NcclWatch::NcclWatch(transport::Node& node, int rank, double timeout)
    : node_(node), rank_(rank), timeout_(std::min(timeout, 1e9)), device_(cuda::runtime().device()) {}

NcclWatch::~NcclWatch() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void NcclWatch::add(std::shared_ptr<transport::NcclCommunicator> communicator) {
  const std::lock_guard lock(mutex_);
  if (failure_) {  // the communicator would not be aborted otherwise
    communicator->abort();
  }
  communicators_.push_back(std::move(communicator));
}

void NcclWatch::begin(const transport::Signature& signature, cuda::Stream stream) {
  check();
  Events events = take_events();
  cuda::runtime().record(events.before.get(), stream);
  const std::lock_guard lock(mutex_);
  under_way_.push_back({signature, std::move(events), true, Clock::now()});
  if (!thread_.joinable()) {
    thread_ = start_thread("the thread that watches NCCL", [this] { run(); });
  } else if (sleeps_) {
    changed_.notify_all();
  }
}

// Records the event without the lock, because the stream may be full.
void NcclWatch::end(cuda::Stream stream) {
  cuda::Event behind = nullptr;
  {
    const std::lock_guard lock(mutex_);
    behind = under_way_.back().events.behind.get();
  }
  cuda::runtime().record(behind, stream);
  const std::lock_guard lock(mutex_);
  under_way_.back().is_starting = false;
  under_way_.back().began.reset();
}

// Reuses events of ended calls, if calls come faster than the thread polls.
NcclWatch::Events NcclWatch::take_events() {
  const std::lock_guard lock(mutex_);
  if (spare_.empty() && under_way_.size() >= many) {
    forget_finished();
  }
  if (spare_.empty()) {
    return {cuda::OwnedEvent(), cuda::OwnedEvent()};
  }
  Events events = std::move(spare_.back());
  spare_.pop_back();
  return events;
}

void NcclWatch::forget_finished() {
  while (!under_way_.empty() && !under_way_.front().is_starting &&
         cuda::runtime().happened(under_way_.front().events.behind.get())) {
    spare_.push_back(std::move(under_way_.front().events));
    under_way_.pop_front();
  }
}

void NcclWatch::check() const {
  if (failed_.load(std::memory_order_acquire)) {
    const std::lock_guard lock(mutex_);
    throw Error(*failure_);
  }
}

// Aborts each communicator in a thread of its own, because an abort may wait for work that another communicator blocks
// in the same stream.
void NcclWatch::fail(const Error& reason) noexcept {
  std::vector<std::shared_ptr<transport::NcclCommunicator>> communicators;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) {
      failure_ = std::make_unique<const Error>(reason);
      failed_.store(true, std::memory_order_release);
    }
    communicators = communicators_;
  }
  if (reason.kind() != ErrorKind::closed) {
    node_.fail(reason);
  }
  std::vector<std::thread> threads;
  for (const auto& communicator : communicators) {
    try {
      threads.emplace_back([&communicator] { communicator->abort(); });
    } catch (const std::exception&) {  // no more threads
      communicator->abort();
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  changed_.notify_all();
}

void NcclWatch::drain() noexcept {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return under_way_.empty() || failure_; });
}

void NcclWatch::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    sleeps_ = true;
    changed_.wait(lock, [&] { return ends_ || (!under_way_.empty() && !failure_); });
    sleeps_ = false;
    if (ends_) {
      return;
    }
    if (const std::optional<Error> error = find_error()) {
      lock.unlock();
      fail(*error);
      lock.lock();
    } else if (under_way_.empty()) {
      changed_.notify_all();
    } else {
      changed_.wait_for(lock, interval, [&] { return ends_; });
    }
  }
}

// Checks only the oldest call: the next cannot begin before it has ended.
std::optional<Error> NcclWatch::find_error() {
  try {
    forget_finished();
    if (under_way_.empty()) {
      return std::nullopt;
    }
    Watched& oldest = under_way_.front();
    std::optional<Error> loss = node_.find_loss(oldest.signature);
    const auto error = [&](ErrorKind kind, const std::string& what) {
      return Error(kind, what + (loss ? std::string("; ") + loss->what() : ""));
    };
    for (const auto& communicator : communicators_) {
      if (const auto failed = communicator->asynchronous_error()) {
        return error(failed->kind(),
                     describe(oldest.signature) + " failed on rank " + std::to_string(rank_) + ": " + failed->what());
      }
    }
    const auto now = Clock::now();
    if (!oldest.began && cuda::runtime().happened(oldest.events.before.get())) {
      oldest.began = now;
    }
    if (!loss) {
      lost_.reset();
    } else if (!lost_) {
      lost_ = now;
    } else if (now - std::max(*lost_, oldest.began.value_or(now)) > waits::nccl_data.time()) {
      return loss;
    }
    if (oldest.began && std::chrono::duration<double>(now - *oldest.began).count() > timeout_) {
      return error(ErrorKind::timeout, "NCCL did not finish " + describe(oldest.signature) + " within " +
                                           format_number(timeout_) + " s (GRADIENTFLOW_TIMEOUT) on rank " +
                                           std::to_string(rank_));
    }
    return std::nullopt;
  } catch (const Error& error) {  // the device has failed
    return error;
  }
}

}  // namespace gradientflow::collective

#include "communicator.hpp"

#include <string>
#include <utility>

#include "../../base/forks.hpp"
#include "turns.hpp"

namespace gradientflow::engine {
namespace {

using transport::CallKind;

// The communicator in whose call this thread runs signal handlers: that call has the turn, so a handler cannot wait for
// it.
thread_local const Communicator* polling = nullptr;

}  // namespace

Communicator::Communicator(std::unique_ptr<transport::Endpoint> endpoint, const Config& config,
                           const Communicator* within)
    : group_(std::make_unique<collective::Group>(std::move(endpoint), config)),
      sent_(std::make_shared<SentBytes>(within != nullptr ? within->sent_ : nullptr)),
      point_to_point_(group_->messages()),
      forks_(count_forks()) {}

// In a forked process a communicator is never destroyed: neither its endpoint nor the parent's flags may be touched
// there, and a lock or condition variable that was in use at the fork stays so.
std::shared_ptr<Communicator> Communicator::make(std::unique_ptr<transport::Endpoint> endpoint, const Config& config,
                                                 const Communicator* within) {
  std::shared_ptr<Communicator> communicator(new Communicator(std::move(endpoint), config, within),
                                             [](const Communicator* instance) {
                                               if (instance->forks_ == count_forks()) {
                                                 delete instance;
                                               }
                                             });
  if (!config.timeline.empty()) {
    communicator->start_timeline(config.timeline);
  }
  return communicator;
}

Communicator::~Communicator() { close(false); }

void Communicator::check_process() const {
  if (forks_ != count_forks()) {
    throw Error(ErrorKind::closed, "the communicator belongs to the process that this one was forked from");
  }
}

bool Communicator::is_alive(int rank) const {
  const int local = group_->node().local_rank_of(rank);
  return local < 0 || group_->node().is_alive(local);
}

void Communicator::check_open() const {
  check_process();
  check_usable();
}

void Communicator::admit(const collective::Call& call) const {
  check_process();
  if (sends_messages(call)) {
    group_->endpoint().check_not_ended();
  }
}

void Communicator::check_usable() const {
  if (polling == this) {
    throw Error(ErrorKind::value,
                "a signal's handler can make no call on the communicator whose call the signal has interrupted");
  }
  if (usable_.load()) {
    return;
  }
  if (closed_.load() || !broken_) {
    throw Error(ErrorKind::closed, "the communicator is closed");
  }
  throw Error(broken_->kind(), std::string("the communicator cannot be used any more, because of: ") + broken_->what());
}

collective::Outcome Communicator::run(const collective::Call& call, const Release& release) {
  admit(call);
  if (!recorded_.load(std::memory_order_relaxed)) {
    return in_turn([&] { return execute(call, release); }, release);
  }
  if (release) {
    release();
  }
  const auto queued = Times::Clock::now();
  return in_turn([&] { return serve(call, queued).outcome; });
}

collective::Outcome Communicator::execute(const collective::Call& call, const Release& release) {
  if (release && collective::Group::is_short(call)) {
    group_->begin(call);
    if (!group_->is_confirmed_soon()) {
      release();
    }
    return group_->finish(call, release);
  }
  if (release) {
    release();
  }
  const collective::Outcome outcome = call.placement ? run_on_device(call) : group_->run(call);
  sent_->add(outcome.bytes_sent);
  return outcome;
}

collective::Outcome Communicator::run_within(const collective::Call& call, Times& times) {
  const Served served = serve(call, times.queued);
  times = served.times;
  return served.outcome;
}

// Runs the call, and records it.
Communicator::Served Communicator::serve(const collective::Call& call, Times::Clock::time_point queued) {
  Served served{{}, {queued, Times::Clock::now(), {}}, {}};
  std::optional<Error> failure;
  try {
    served.outcome = execute(call);
  } catch (const Error& error) {
    failure = error;
  }
  served.times.ended = Times::Clock::now();
  record(call, served.outcome, served.times, failure);
  if (failure) {
    throw Error(*failure);
  }
  return served;
}

// The detail of the signature says what the duplicate is for, so that a rank that splits instead gets an error: it
// would wait there for ever.
std::shared_ptr<Communicator> Communicator::duplicate(const std::string& name, transport::MadeFor what) {
  check_process();
  Config config = group_->config();
  config.timeline.clear();
  const std::shared_ptr<Communicator> copy = in_turn([&] {
    group_->agree_on({.signature = {.kind = CallKind::split, .detail = static_cast<std::uint32_t>(what)}});
    return make(group_->endpoint().duplicate(), config, this);
  });
  copy->name_ = name;
  copy->poll_signals_ = poll_signals_;
  const std::lock_guard lock(mutex_);
  check_usable();
  std::erase_if(duplicates_, [](const auto& each) { return each.expired(); });
  duplicates_.push_back(copy);
  copy->follow(timeline_);
  return copy;
}

std::vector<std::shared_ptr<Communicator>> Communicator::duplicates() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Communicator>> found;
  for (const auto& each : duplicates_) {
    if (auto copy = each.lock()) {
      found.push_back(std::move(copy));
    }
  }
  return found;
}

std::unique_ptr<transport::Endpoint> Communicator::split(int color, int key) {
  check_process();
  return in_turn([&] { return group_->split(color, key); });
}

std::shared_ptr<transport::Segment> Communicator::allocate(std::size_t bytes, transport::Pages pages) {
  check_process();
  const auto poll_signals = [this] {
    const auto restore = [](const Communicator** before) { polling = *before; };
    const Communicator* before = std::exchange(polling, this);
    const std::unique_ptr<const Communicator*, decltype(restore)> until(&before, restore);
    if (poll_signals_) {
      poll_signals_();
    }
  };
  return in_turn([&] { return group_->allocate(bytes, pages, poll_signals); });
}

void Communicator::close(bool drain) noexcept {
  if (forks_ != count_forks()) {
    return;
  }
  for (const auto& copy : duplicates()) {
    copy->close(drain);
  }
  if (polling == this) {  // the call under way in this thread ends next; its caller then closes
    group_->interrupt();
    return;
  }
  std::thread finished;
  bool unserved = false;  // whether other ranks may wait for calls in vain; served calls end by themselves
  {
    std::unique_lock lock(mutex_);
    if (closed_) {
      return;
    }
    unserved = serving_.load() != next_ticket_.load();
    if (drain) {
      wait_until_served(lock);
    } else {
      group_->interrupt();
    }
    closed_ = true;
    usable_ = false;
    turn_.notify_all();
    finished = std::move(progress_thread_);
  }
  if (!drain && unserved) {
    abort_on_device();
  }
  if (finished.joinable()) {
    finished.join();
  }
  std::unique_lock lock(mutex_);
  wait_until_served(lock);  // blocking calls of other threads
  recorded_ = false;
  timeline_.reset();
  const std::shared_ptr<DeviceTimeline> device_timeline = std::exchange(device_timeline_, nullptr);
  lock.unlock();
  group_->close();
}

bool Communicator::closed() const { return closed_ || forks_ != count_forks(); }

}  // namespace gradientflow::engine

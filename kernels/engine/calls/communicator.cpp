#include "communicator.hpp"

#include <pthread.h>

#include <atomic>
#include <new>
#include <string>
#include <utility>

#include "../../base/thread.hpp"
#include "prepared_call.hpp"

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

// Number of forks between the first process that counts and this one.
std::atomic<int> forks{0};

int count_forks() {
  static const int watched = pthread_atfork(nullptr, nullptr, [] { ++forks; });
  static_cast<void>(watched);
  return forks.load(std::memory_order_relaxed);
}

// The communicator in whose call this thread runs signal handlers: that call has the turn, so a handler cannot wait for
// it.
thread_local const Communicator* polling = nullptr;

bool uses_mpi(const collective::Call& call) { return call.choice && !collective::is_inside_node(call.choice->path); }

}  // namespace

Communicator::Communicator(MPI_Comm comm, const Config& config, const Communicator* within)
    : group_(std::make_unique<collective::Group>(comm, config)),
      sent_(std::make_shared<SentBytes>(within != nullptr ? within->sent_ : nullptr)),
      point_to_point_(group_->messages()),
      forks_(count_forks()) {}

// In a forked process a communicator is never destroyed: neither MPI nor the parent's flags may be touched there, and a
// lock or condition variable that was in use at the fork stays so.
std::shared_ptr<Communicator> Communicator::make(MPI_Comm comm, const Config& config, const Communicator* within) {
  if (count_forks() > 0) {
    throw Error(ErrorKind::closed,
                "MPI belongs to the process that this one was forked from: no communicator can be made here");
  }
  std::shared_ptr<Communicator> communicator(new Communicator(comm, config, within), [](const Communicator* instance) {
    if (instance->forks_ == count_forks()) {
      delete instance;
    }
  });
  if (!config.timeline.empty()) {
    communicator->start_timeline(config.timeline);
  }
  return communicator;
}

void Communicator::watch_forks() noexcept {
  if (transport::mpi_initialised()) {
    count_forks();
  }
}

Communicator::~Communicator() { close(false); }

void Communicator::check_process() const {
  if (forks_ != forks.load(std::memory_order_relaxed)) {
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
  if (uses_mpi(call)) {
    group_->mpi().check_not_finalized();
  }
}

void Communicator::check_device(int device) const {
  const std::lock_guard lock(mutex_);
  if (device_ && *device_ != device) {
    throw Error(ErrorKind::value, "the tensor is on CUDA device " + std::to_string(device) +
                                      ", but this communicator has served device " + std::to_string(*device_) +
                                      " before; a rank has one device, another communicator may have another");
  }
}

// Binds the communicator to a device: from the first call on it, even before that call is served.
void Communicator::take_device(int device) {
  check_device(device);
  const std::lock_guard lock(mutex_);
  device_ = device;
}

const collective::DeviceGroup* Communicator::device_group() const {
  const std::lock_guard lock(mutex_);
  return device_group_.get();
}

// Aborts device calls, so that no stream waits for ranks that will not come.
void Communicator::abort_on_device() noexcept {
  collective::DeviceGroup* devices = nullptr;
  {
    const std::lock_guard lock(mutex_);
    devices = device_group_.get();
  }
  if (devices != nullptr) {
    devices->abort();
  }
}

// Called in turn. Making the group is collective, so all ranks first agree on the call for which it is made: others may
// be in a call on host memory.
collective::DeviceGroup& Communicator::device_group(int device, const collective::Call& call) {
  take_device(device);
  if (device_group_ == nullptr) {
    try {
      if (size() > 1) {
        group_->agree_on(call);
      }
      auto made = std::make_shared<collective::DeviceGroup>(*group_, device);
      const std::lock_guard lock(mutex_);
      device_group_ = std::move(made);
    } catch (const Error&) {
      const std::lock_guard lock(mutex_);
      device_.reset();
      throw;
    }
  }
  return *device_group_;
}

void Communicator::check_rank(int rank, const char* what) const {
  if (rank < 0 || rank >= size()) {
    throw Error(ErrorKind::value, std::string(what) + " " + std::to_string(rank) + " is not a rank: ranks are 0 to " +
                                      std::to_string(size() - 1));
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

// Runs `work`; an error that breaks the communicator is remembered, and the other ranks are told.
template <class Work>
auto Communicator::guarded(Work work) {
  try {
    try {
      return work();
    } catch (const std::bad_alloc&) {
      throw Error(ErrorKind::system, "not enough memory in the middle of a call");
    }
  } catch (const Error& thrown) {
    const Error error = with_untold_failure(thrown);
    if (breaks(error.kind())) {
      break_off(error);
    }
    throw Error(error);
  } catch (...) {
    break_off(Error(ErrorKind::closed, "a signal's handler ended a call with an exception"));
    throw;
  }
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

std::shared_ptr<Failure> Communicator::untold_failure() const {
  {
    const std::lock_guard lock(mutex_);
    if (failure_ && !failure_->told) {
      return failure_;
    }
  }
  for (const auto& copy : duplicates()) {
    if (auto failure = copy->untold_failure()) {
      return failure;
    }
  }
  return nullptr;
}

// A timeout may come from an earlier asynchronous call that failed, and whose error no thread here has asked for: the
// other ranks may know of it and make other calls.
Error Communicator::with_untold_failure(const Error& error) const {
  if (error.kind() != ErrorKind::timeout) {
    return error;
  }
  const auto failure = untold_failure();
  if (failure == nullptr) {
    return error;
  }
  return {error.kind(),
          std::string(error.what()) + "; before that, an asynchronous call of rank " + std::to_string(rank()) +
              " had failed, and nobody has waited for its handle: " + failure->error.what(),
          error.code()};
}

// A thread draws a ticket and then reads `serving_`; a thread that has been served advances `serving_` and then reads
// `next_ticket_`. Both are sequentially consistent, so at least one sees the other. The same holds for `usable_`, which
// is read after a ticket is drawn, and for threads that wait until all tickets are served.
template <class Work>
auto Communicator::in_turn(Work work, const Release& release) {
  check_usable();
  const std::uint64_t ticket = next_ticket_.fetch_add(1);
  if (serving_.load() != ticket) {
    if (release) {
      release();
    }
    std::unique_lock lock(mutex_);
    wait_for(lock, [&] { return serving_.load() == ticket; });
  }
  const std::unique_ptr<Communicator, LeaveTurn> turn(this);  // however `work` ends
  check_usable();
  return guarded(std::move(work));
}

void Communicator::leave_turn() {
  const std::uint64_t next = serving_.load(std::memory_order_relaxed) + 1;  // nobody else writes it now
  serving_.store(next);
  if (next_ticket_.load() != next || draining_.load() > 0) {
    const std::lock_guard lock(mutex_);
    turn_.notify_all();
  }
}

// Waits until `reached()`; finishes the open prepared call, if there is one, as it has the turn.
template <class Reached>
void Communicator::wait_for(std::unique_lock<std::mutex>& lock, Reached reached) {
  while (!reached()) {
    if (!finish_open(lock)) {
      turn_.wait(lock);
    }
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

// Also records when the device runs the call.
collective::Outcome Communicator::run_on_device(const collective::Call& call) {
  const collective::Placement& placement = placement_of(call);
  const auto timeline = device_timeline(placement.device);
  if (timeline == nullptr) {
    return device_group(placement.device, call).run(call);
  }
  timeline->begin(placement.stream);
  const collective::Outcome outcome = device_group(placement.device, call).run(call);
  timeline->end(placement.stream, describe(call.signature, call.label),
                R"("on_device": true, "path": ")" + std::string(name_of(outcome.path)) + "\"");
  return outcome;
}

std::shared_ptr<DeviceTimeline> Communicator::device_timeline(int device) {
  const std::lock_guard lock(mutex_);
  if (timeline_ == nullptr) {
    return nullptr;
  }
  if (device_timeline_ == nullptr) {
    device_timeline_ = std::make_shared<DeviceTimeline>(timeline_, device, name_);
  }
  return device_timeline_;
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

void Communicator::record(const collective::Call& call, const collective::Outcome& outcome, const Times& times,
                          const std::optional<Error>& failure) const {
  if (!recorded_.load(std::memory_order_relaxed)) {
    return;
  }
  std::shared_ptr<Timeline> timeline;
  int track = 0;
  {
    const std::lock_guard lock(mutex_);
    timeline = timeline_;
    track = track_;
  }
  if (timeline == nullptr) {
    return;
  }
  const std::string name = describe(call.signature, call.label);
  timeline->waited(track, name, times.queued, times.started);
  std::string facts = "\"bytes\": " + std::to_string(call.bytes());
  if (failure) {
    facts += R"(, "failed": true)";
  } else {
    facts += ", \"path\": \"" + std::string(name_of(outcome.path)) + "\"";
  }
  if (outcome.bytes_sent) {
    facts += ", \"bytes_sent\": " + std::to_string(*outcome.bytes_sent);
  }
  if (outcome.nonfinite) {
    facts += ", \"nonfinite\": " + std::to_string(*outcome.nonfinite);
  }
  timeline->span(track, name, times.started, times.ended, facts);
}

// The detail of the signature says what the duplicate is for, so that a rank that splits instead gets an error: it
// would wait in MPI for ever.
std::shared_ptr<Communicator> Communicator::duplicate(const std::string& name, transport::MadeFor what) {
  check_process();
  Config config = group_->config();
  config.timeline.clear();
  const std::shared_ptr<Communicator> copy = in_turn([&] {
    group_->agree_on({.signature = {.kind = CallKind::split, .detail = static_cast<std::uint32_t>(what)}});
    return make(group_->mpi().get(), config, this);
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

void Communicator::follow(const std::shared_ptr<Timeline>& timeline) {
  const int track = timeline == nullptr ? 0 : timeline->add_track(name_);
  std::shared_ptr<DeviceTimeline> former;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  former = std::exchange(device_timeline_, nullptr);
  timeline_ = timeline;
  track_ = track;
  recorded_ = timeline != nullptr;
}

void Communicator::start_timeline(const std::string& path) {
  check_process();
  const collective::Group::Clock clock = in_turn([&] { return group_->compare_clocks(); });
  constexpr double micro = 1e6;
  const int world_rank = transport::world_rank();
  const std::string own = path_of_rank(path, world_rank);
  auto timeline = Timeline::find(own);
  if (timeline == nullptr) {
    timeline = Timeline::open(own, {world_rank, clock.run, clock.offset * micro});
  }
  follow(timeline);
  for (const auto& copy : duplicates()) {
    copy->follow(timeline);
  }
}

void Communicator::stop_timeline() {
  follow(nullptr);
  for (const auto& copy : duplicates()) {
    copy->follow(nullptr);
  }
}

std::shared_ptr<Timeline> Communicator::timeline() const {
  if (!recorded_.load(std::memory_order_relaxed)) {
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  return timeline_;
}

MPI_Comm Communicator::split(int color, int key) {
  check_process();
  return in_turn([&] { return group_->split(color, key); });
}

template <class Work>
void Communicator::apart(int peer, Work work) {
  check_process();
  check_rank(peer, "peer");
  if (peer == rank()) {
    throw Error(ErrorKind::value, "rank " + std::to_string(peer) + " cannot send to itself, nor receive from itself");
  }
  group_->mpi().check_not_finalized();
  if (!transport::mpi_thread_multiple()) {
    in_turn(std::move(work));
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    check_usable();
    ++apart_;
  }
  struct Leave {
    void operator()(Communicator* self) const {
      const std::lock_guard lock(self->mutex_);
      --self->apart_;
      self->turn_.notify_all();
    }
  };
  const std::unique_ptr<Communicator, Leave> leave(this);
  guarded(std::move(work));
}

void Communicator::send(int to, const void* data, std::size_t count, DType dtype,
                        const std::optional<collective::Placement>& placement) {
  const std::size_t bytes = count * size_of(dtype);
  if (!placement) {
    apart(to, [&] { point_to_point_.send(to, data, count, dtype); });
  } else {
    const compute::cuda::UseDevice use(placement->device);
    const transport::Buffer copy(group_->mpi(), bytes);
    compute::cuda::runtime().copy(copy.data(), data, bytes, placement->stream);
    compute::cuda::runtime().synchronize(placement->stream);
    apart(to, [&] { point_to_point_.send(to, copy.data(), count, dtype); });
  }
  sent_->add(bytes);
}

void Communicator::receive(int from, void* data, std::size_t count, DType dtype,
                           const std::optional<collective::Placement>& placement) {
  if (!placement) {
    apart(from, [&] { point_to_point_.receive(from, data, count, dtype); });
    return;
  }
  const compute::cuda::UseDevice use(placement->device);
  const transport::Buffer copy(group_->mpi(), count * size_of(dtype));
  apart(from, [&] { point_to_point_.receive(from, copy.data(), count, dtype); });
  compute::cuda::runtime().copy(data, copy.data(), count * size_of(dtype), placement->stream);
  compute::cuda::runtime().synchronize(placement->stream);
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

std::shared_ptr<collective::DeviceSegment> Communicator::allocate_on_device(int device, std::size_t bytes) {
  check_process();
  const collective::Call call{
      .signature = {.count = bytes, .kind = CallKind::allocate, .memory = transport::Memory::device}};
  return in_turn([&] { return device_group(device, call).allocate(bytes); });
}

std::shared_ptr<Handle> Communicator::submit(const collective::Call& call) {
  admit(call);
  if (call.placement) {
    if (size() > 1 && !transport::mpi_thread_multiple()) {
      throw Error(ErrorKind::value, std::string("asynchronous calls on CUDA tensors need MPI_THREAD_MULTIPLE") +
                                        transport::thread_level_advice());
    }
    take_device(placement_of(call).device);
    const auto after = std::make_shared<StreamMarks>(placement_of(call).device);
    after->mark(placement_of(call).stream);
    return enqueue([this, call, after, queued = Times::Clock::now()](Served& served) {
      serve_in_background(call, *after, queued, served);
    });
  }
  if (uses_mpi(call) && !transport::mpi_thread_multiple()) {
    throw Error(ErrorKind::value, std::string("asynchronous calls between nodes need MPI_THREAD_MULTIPLE") +
                                      transport::thread_level_advice());
  }
  return enqueue([this, call, queued = Times::Clock::now()](Served& served) { served = serve(call, queued); });
}

std::shared_ptr<Handle> Communicator::submit(const collective::Call& call, const StreamMarks& after) {
  admit(call);
  return enqueue([this, call, &after, queued = Times::Clock::now()](Served& served) {
    serve_in_background(call, after, queued, served);
  });
}

// A call that fails may have left work in the stream: its tensors are in use until that has ended, too.
void Communicator::serve_in_background(collective::Call call, const StreamMarks& after, Times::Clock::time_point queued,
                                       Served& served) {
  const int device = placement_of(call).device;
  const compute::cuda::UseDevice use(device);
  const compute::cuda::Stream stream = device_group(device, call).stream();
  call.placement = collective::Placement{device, stream};
  after.hold(stream);
  const auto end = std::make_shared<OnDevice>(device, compute::cuda::OwnedEvent(), device_group_);
  try {
    served = serve(call, queued);
  } catch (const Error&) {
    compute::cuda::runtime().record(end->event.get(), stream);
    served.end = end;
    throw;
  }
  compute::cuda::runtime().record(end->event.get(), stream);
  served.end = end;
}

std::shared_ptr<Handle> Communicator::submit(std::function<void(collective::Group&)> work) {
  check_process();
  return enqueue([this, work = std::move(work), queued = Times::Clock::now()](Served& served) {
    served.times = {queued, Times::Clock::now(), {}};
    work(*group_);
    served.times.ended = Times::Clock::now();
  });
}

std::shared_ptr<Handle> Communicator::enqueue(const std::function<void(Served&)>& work) {
  auto handle = std::make_shared<Handle>();
  const std::lock_guard lock(mutex_);
  check_usable();
  if (!progress_thread_.joinable()) {
    progress_thread_ = start_thread("the progress thread of a communicator", [this] { progress(); });
  }
  pending_.push_back({0, work, handle});
  pending_.back().ticket = next_ticket_.fetch_add(1);  // drawn when nothing can fail any more: each has to be served
  turn_.notify_all();
  return handle;
}

// Runs the work of an asynchronous call, without the lock. Returns its failure, which is kept until a caller is told.
template <class Work>
std::shared_ptr<Failure> Communicator::attempt(std::unique_lock<std::mutex>& lock, Work work) {
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

void Communicator::progress() {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto is_next = [&] { return !pending_.empty() && pending_.front().ticket == serving_.load(); };
    while (!is_next()) {
      if (pending_.empty() && closed_) {
        return;
      }
      if (pending_.empty() || !finish_open(lock)) {
        turn_.wait(lock);
      }
    }
    const Pending next = std::move(pending_.front());
    pending_.pop_front();
    Served served{};
    std::shared_ptr<Failure> failure = attempt(lock, [&] { next.work(served); });
    ++serving_;
    turn_.notify_all();
    next.handle->finish(served.outcome, served.times, std::move(served.end), std::move(failure));
  }
}

void Communicator::wait_until_served(std::unique_lock<std::mutex>& lock) {
  ++draining_;
  wait_for(lock, [&] { return serving_.load() == next_ticket_.load() && apart_ == 0; });
  --draining_;
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

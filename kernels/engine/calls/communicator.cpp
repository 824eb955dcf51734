#include "communicator.hpp"

#include <string>
#include <utility>

#include "../../base/forks.hpp"
#include "prepared_call.hpp"

namespace gradientflow::engine {
namespace {

// Describes a communicator for the log. Its identity is that of its endpoint over TCP; over MPI it follows from the
// order in which communicators are made.
CallLog::Source source_of(const collective::Group& group, const std::string& name, const std::string& ordinal) {
  const transport::Endpoint& endpoint = group.endpoint();
  CallLog::Source source{.name = name,
                         .identity = ordinal,
                         .rank = endpoint.rank(),
                         .size = endpoint.size(),
                         .job_rank = endpoint.job_rank(),
                         .members = group.topology().job_ranks,
                         .pids = group.topology().pids};
  if (!endpoint.transport().is_mpi) {
    const transport::Invitation invitation = endpoint.invitation();
    source.identity = std::to_string(invitation.id);
    source.job = collective::hash_of(std::as_bytes(std::span(invitation.token)));
  }
  return source;
}

}  // namespace

Communicator::Communicator(std::unique_ptr<transport::Endpoint> endpoint, const Config& config,
                           const Communicator* within, const std::string& name)
    : group_(std::make_unique<collective::Group>(std::move(endpoint), config)),
      sent_(std::make_shared<SentBytes>(within != nullptr ? within->sent_ : nullptr)),
      recorder_(name),
      log_(source_of(*group_, name, within != nullptr ? within->log_.next_identity() : LoggedCalls::first_identity()),
           config.dump != "off"),
      devices_(*group_, recorder_),
      turns_(*group_, devices_, [this](const Error& error) { return with_unreported_failure(error); }),
      point_to_point_(group_->messages()),
      forks_(count_forks()) {}

std::shared_ptr<Communicator> Communicator::make(std::unique_ptr<transport::Endpoint> endpoint, const Config& config,
                                                 const Communicator* within) {
  return make(std::move(endpoint), config, within, "collectives");
}

// Makes a communicator that is never destroyed in a forked process. There, the endpoint and the parent's flags must not
// be touched, and a lock or condition variable that was in use at the fork stays in use.
std::shared_ptr<Communicator> Communicator::make(std::unique_ptr<transport::Endpoint> endpoint, const Config& config,
                                                 const Communicator* within, const std::string& name) {
  std::shared_ptr<Communicator> communicator(new Communicator(std::move(endpoint), config, within, name),
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

std::vector<int> Communicator::closed_elsewhere() {
  std::vector<int> ranks = group_->messages().closed();
  const transport::Node& node = group_->node();
  for (int local = 0; local < node.size(); ++local) {
    if (local != node.rank() && node.has_closed(local)) {
      ranks.push_back(node.world_rank(local));
    }
  }
  return ranks;
}

void Communicator::check_open() const {
  check_process();
  turns_.check_usable();
}

void Communicator::check_rank(int rank, const char* what) const {
  if (rank < 0 || rank >= size()) {
    throw Error(ErrorKind::value, std::string(what) + " " + std::to_string(rank) + " is not a rank: ranks are 0 to " +
                                      std::to_string(size() - 1));
  }
}

void Communicator::admit(const collective::Call& call) const {
  check_process();
  if (call.sends_messages()) {
    group_->endpoint().check_not_ended();
  }
}

std::shared_ptr<Failure> Communicator::unreported_failure() const {
  if (auto failure = turns_.unreported_failure()) {
    return failure;
  }
  for (const auto& copy : duplicates()) {
    if (auto failure = copy->unreported_failure()) {
      return failure;
    }
  }
  return nullptr;
}

// Adds to a timeout error the earlier asynchronous call that failed, if no thread of this rank was told of its error:
// peers may know of that failure and make different calls.
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

collective::CallResult Communicator::run(const collective::Call& call, const Release& release) {
  admit(call);
  return log_.during(log_.begin(CallForm::blocking, call.signature), [&] {
    if (!recorder_.is_on()) {
      return turns_.run([&] { return execute(call, release); }, release);
    }
    if (release) {
      release();
    }
    const auto queued = Times::Clock::now();
    return turns_.run([&] { return serve(call, queued).outcome; });
  });
}

collective::CallResult Communicator::execute(const collective::Call& call, const Release& release) {
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
  const collective::CallResult outcome = call.placement ? devices_.run(call) : group_->run(call);
  sent_->add(outcome.bytes_sent);
  return outcome;
}

collective::CallResult Communicator::run_within(const collective::Call& call, Times& times) {
  const Served served = serve(call, times.queued);
  times = served.times;
  return served.outcome;
}

// Runs and records the call.
Served Communicator::serve(const collective::Call& call, Times::Clock::time_point queued) {
  Served served{{}, {queued, Times::Clock::now(), {}}, {}};
  std::optional<Error> failure;
  try {
    served.outcome = execute(call);
  } catch (const Error& error) {
    failure = error;
  }
  served.times.ended = Times::Clock::now();
  recorder_.record(call, served.outcome, served.times, failure);
  if (failure) {
    throw Error(*failure);
  }
  return served;
}

// Puts the purpose of the duplicate into the signature, so that a rank that calls split() instead gets an error and
// does not wait forever.
std::shared_ptr<Communicator> Communicator::duplicate(const std::string& name, transport::MadeFor what) {
  check_process();
  Config config = group_->config();
  config.timeline.clear();
  const transport::Signature signature{.detail = static_cast<std::uint32_t>(what), .splits = true};
  const std::shared_ptr<Communicator> copy = log_.during(log_.begin(CallForm::blocking, signature), [&] {
    return turns_.run([&] {
      group_->endpoint().check_mpi_not_ended();
      group_->agree_on({.signature = signature});
      return make(group_->endpoint().duplicate(), config, this, name);
    });
  });
  copy->poll_signals_ = poll_signals_;
  const std::lock_guard lock(mutex_);
  turns_.check_usable();
  std::erase_if(duplicates_, [](const auto& each) { return each.expired(); });
  duplicates_.push_back(copy);
  copy->recorder_.follow(recorder_.timeline());
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
  return log_.during(log_.begin(CallForm::blocking, {.splits = true}),
                     [&] { return turns_.run([&] { return group_->split(color, key); }); });
}

std::shared_ptr<transport::Segment> Communicator::allocate(std::size_t bytes, transport::Pages pages) {
  check_process();
  const auto poll_signals = [this] {
    turns_.poll([this] {
      if (poll_signals_) {
        poll_signals_();
      }
    });
  };
  return log_.during(log_.begin(CallForm::blocking, {.count = bytes, .allocates = true}),
                     [&] { return turns_.run([&] { return group_->allocate(bytes, pages, poll_signals); }); });
}

std::shared_ptr<collective::DeviceSegment> Communicator::allocate_on_device(int device, std::size_t bytes) {
  check_process();
  const collective::Call call{.signature = {.count = bytes, .memory = transport::Memory::device, .allocates = true}};
  return log_.during(log_.begin(CallForm::blocking, call.signature),
                     [&] { return turns_.run([&] { return devices_.group(device, call)->allocate(bytes); }); });
}

void Communicator::start_timeline(const std::string& path) {
  check_process();
  const collective::Group::Clock clock = turns_.run([&] { return group_->compare_clocks(); });
  constexpr double micro = 1e6;
  const int job_rank = group_->endpoint().job_rank();
  const std::string own = path_of_rank(path, job_rank);
  auto timeline = Timeline::find(own);
  if (timeline == nullptr) {
    timeline = Timeline::open(own, {job_rank, clock.run, clock.offset * micro});
  }
  recorder_.follow(timeline);
  for (const auto& copy : duplicates()) {
    copy->recorder_.follow(timeline);
  }
}

void Communicator::stop_timeline() {
  recorder_.follow(nullptr);
  for (const auto& copy : duplicates()) {
    copy->recorder_.follow(nullptr);
  }
}

bool Communicator::close(bool drain) noexcept {
  const bool is_first = leave(drain);
  if (is_first) {
    release();
  }
  return is_first;
}

// Closes the communicator, but keeps the endpoint for the communicator that replaces this one.
bool Communicator::leave(bool drain) noexcept {
  if (forks_ != count_forks()) {
    return false;
  }
  for (const auto& copy : duplicates()) {
    copy->close(drain);
  }
  if (turns_.is_polling_here()) {  // the call under way in this thread ends next; then its caller closes
    group_->interrupt();
    return false;
  }
  const bool is_first = turns_.close(drain);
  if (is_first) {
    recorder_.follow(nullptr);
    group_->close();
  }
  return is_first;
}

// Releases the group, unless calls on a device exist: their thread watches the ranks.
void Communicator::release() noexcept {
  if (devices_.made() == nullptr) {
    group_->release();
  }
}

bool Communicator::closed() const { return turns_.is_closed() || forks_ != count_forks(); }

void Communicator::start(PreparedCall& prepared, const Release& release) {
  const collective::Call& call = prepared.call_;
  admit(call);
  if (collective::Group::can_begin(call) && !recorder_.is_on() && turns_.begin(prepared)) {
    prepared.entry_ = log_.begin(CallForm::prepared, call.signature);
    return;
  }
  if (release) {  // earlier calls may take long
    release();
  }
  prepared.handle_ = submit(call);
}

collective::CallResult Communicator::finish(PreparedCall& prepared, std::optional<double> timeout,
                                            const Release& release) {
  check_process();
  return turns_.finish(prepared, timeout, release);
}

bool Communicator::is_finished(PreparedCall& prepared) {
  check_process();
  return turns_.is_finished(prepared);
}

}  // namespace gradientflow::engine

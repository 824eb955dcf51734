#include "server_worker.hpp"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>

#include "../../base/text.hpp"
#include "../../compute/kernels.hpp"

namespace gradientflow::engine {
namespace {

using namespace std::chrono_literals;

constexpr auto between_looks = 50ms;
constexpr auto last_words = 1s;
constexpr double longest_wait = 1e9;

// What does not fit into the caches is not read again while it is there.
compute::Store store_for(std::size_t bytes) {
  return bytes >= 4 * mib ? compute::Store::streaming : compute::Store::cached;
}

bool have_ended(const std::vector<std::shared_ptr<transport::Letter>>& letters) {
  return std::all_of(letters.begin(), letters.end(),
                     [](const auto& letter) { return letter == nullptr || letter->ended(); });
}

void check_number(const char* name, float value) {
  if (!(value >= 0.0F) || !std::isfinite(value)) {
    throw Error(ErrorKind::value, std::string(name) + " is finite and 0 or more, not " + format_number(value));
  }
}

}  // namespace

ServerWorker::ServerWorker(Server::Shared& shared, double timeout, std::function<void()> attend)
    : shared_(shared),
      timeout_(timeout),
      attend_(std::move(attend)),
      ready_(shared.layout.tensors()),
      answers_(shared.roles.servers.size()),
      has_answered_(answers_, true),
      versions_(answers_) {
  begin_ranges();
}

void ServerWorker::begin_ranges() {
  sent_ = 0;
  left_.clear();
  for (std::size_t r = 0; r < shared_.layout.ranges().size(); ++r) {
    left_.push_back(shared_.layout.elements_of(r));
  }
}

void ServerWorker::check_usable() const {
  if (closed_) {
    throw Error(ErrorKind::closed, "the parameter server has been closed");
  }
  if (failure_) {
    throw Error(*failure_);
  }
}

// With mutex_ held, as all that follow.
void ServerWorker::check_not_finishing() const {
  if (finishing_) {
    throw Error(ErrorKind::value, "finish has begun, and waits for other ranks: call it again before anything else");
  }
}

void ServerWorker::take_notes() {
  while (auto received = take_note(*shared_.mailbox, shared_.tags.to_worker)) {
    const Note& note = received->note;
    if (note.kind == NoteKind::release) {
      released_ = note.pushes;
      round_ = note.round;
      const auto skipped = received->payload_as<std::uint64_t>();
      for (std::size_t at = 0; at < skipped.size(); at += 2) {
        skipped_[skipped[at]] = static_cast<Skip>(skipped[at + 1]);
      }
    } else if (note.kind == NoteKind::answer) {
      versions_[note.number] = note.version;
      has_answered_[note.number] = true;
      ++answers_;
    } else if (note.kind == NoteKind::report) {
      ++reports_come_;
      report_ = received->payload_as<double>();
    } else if (note.kind == NoteKind::failure && !failure_) {
      const std::string text(reinterpret_cast<const char*>(received->payload.data()), received->payload.size());
      failure_.emplace(static_cast<ErrorKind>(note.number), text);
    }
  }
}

// A rank that has closed in order is missed where it serves.
void ServerWorker::check_losses(const std::string& what) {
  losses_ = shared_.mailbox->losses();
  for (int rank = 0; losses_ > 0 && rank < shared_.mailbox->size(); ++rank) {
    if (shared_.mailbox->has_closed(rank) && shared_.roles.server_at(rank) < 0) {
      continue;
    }
    if (const auto loss = shared_.mailbox->loss_of(rank, what)) {
      const auto deadline = Clock::now() + last_words;  // of a server, which knows who was the first to leave
      for (take_notes(); !failure_ && Clock::now() < deadline; take_notes()) {
        shared_.mailbox->poll();
        std::this_thread::sleep_for(1ms);
      }
      if (!failure_) {
        failure_.emplace(*loss);
      }
      throw Error(*failure_);
    }
  }
}

template <class Done>
void ServerWorker::wait(Lock& lock, Seconds timeout, const std::string& what, Done done) {
  if (timeout && std::isnan(*timeout)) {
    throw Error(ErrorKind::value, "timeout is not a number");
  }
  const double seconds = std::clamp(timeout.value_or(timeout_), 0.0, longest_wait);
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  while (true) {
    check_usable();
    take_notes();
    check_usable();
    if (done()) {
      return;
    }
    check_losses(what);
    const auto soon = Clock::now() + between_looks;
    lock.unlock();
    const bool came = shared_.mailbox->until(
        [&] {
          const Lock held(mutex_);
          if (closed_) {
            return true;
          }
          take_notes();
          return failure_ || done() || shared_.mailbox->losses() != losses_;
        },
        std::min(deadline, soon));
    if (attend_) {
      attend_();
    }
    lock.lock();
    if (!came && Clock::now() >= deadline) {
      throw Error(ErrorKind::timeout, what + " of rank " + std::to_string(rank()) + " was not done within " +
                                          format_number(seconds) + " s; it goes on");
    }
  }
}

// ---- pushes ---------------------------------------------------------------------------------------------------------

bool ServerWorker::slot_is_free() {
  const std::uint64_t next = pushes_ + 1;
  Letters& sends = sends_[next % 2];
  if (!have_ended(sends)) {
    return false;
  }
  for (const auto& letter : sends) {
    letter->check();
  }
  sends.clear();
  for (std::size_t s = 0; s < servers(); ++s) {
    if (is_here(s) && shared_.memory.word(s, rank()).applied.load(std::memory_order_acquire) + 2 < next) {
      return false;
    }
  }
  return true;
}

void ServerWorker::await_slot(Lock& lock) {
  if (sent_ == 0 && ready_.count() == 0) {
    wait(lock, {}, "push " + std::to_string(pushes_ + 1), [this] { return slot_is_free(); });
  }
}

std::byte* ServerWorker::slot_of_tensor(std::size_t tensor) const {
  return shared_.memory.slot(rank(), pushes_ + 1) + shared_.layout.offset(tensor) * size_of(shared_.wire);
}

void ServerWorker::ready(std::size_t tensor, const void* gradient, DType dtype) {
  static_cast<void>(index_among_floats(dtype, "a gradient is float32, float16 or bfloat16"));
  Lock lock(mutex_);
  check_usable();
  check_not_finishing();
  ready_.check_new(tensor);
  await_slot(lock);
  ready_.check_new(tensor);
  ready_.add(tensor);
  std::byte* const slot = slot_of_tensor(tensor);
  const std::byte* const source = static_cast<const std::byte*>(gradient);
  const std::size_t store = shared_.layout.counts()[tensor] * size_of(dtype);
  ++copying_;
  const auto& parts = shared_.layout.parts_of_tensor(tensor);
  for (auto at = parts.begin(); at != parts.end();) {  // what a tensor has of a range lies together
    const std::size_t range = at->range;
    std::size_t begin = at->begin;
    std::size_t count = 0;
    for (; at != parts.end() && at->range == range; ++at) {
      begin = std::min(begin, at->begin);
      count += at->count;
    }
    lock.unlock();
    std::byte* const to = slot + begin * size_of(shared_.wire);
    const std::byte* const from = source + begin * size_of(dtype);
    if (dtype == shared_.wire) {
      compute::copy(to, from, count * size_of(dtype), store_for(store));
    } else {
      compute::cast(to, shared_.wire, from, dtype, count, 1.0F);
    }
    lock.lock();
    left_[range] -= count;
    send_ranges();
  }
  --copying_;
  copied_.notify_all();
}

// Those that are complete, and all before them. A worker begins with another server each.
void ServerWorker::send_ranges() {
  const std::size_t item = size_of(shared_.wire);
  const std::byte* const slot = shared_.memory.slot(rank(), pushes_ + 1);
  for (; sent_ < left_.size() && left_[sent_] == 0; ++sent_) {
    for (std::size_t k = 0; k < servers(); ++k) {
      const std::size_t s = (static_cast<std::size_t>(rank()) + k) % servers();
      const Piece& piece = shared_.layout.piece(sent_, s);
      if (!is_here(s) && piece.count > 0) {
        sends_[(pushes_ + 1) % 2].push_back(shared_.mailbox->send(shared_.roles.servers[s], shared_.tags.pushed(),
                                                                  slot + piece.flat * item, piece.count * item,
                                                                  shared_.memory.segment(), transport::Way::in_parts));
      }
    }
  }
}

void ServerWorker::check_settings(std::span<const ServerSettings> settings) const {
  const std::size_t tensors = shared_.layout.tensors();
  if (settings.size() != tensors && settings.size() != 1) {
    throw Error(ErrorKind::value, "settings are one for all tensors or one for each of the " + std::to_string(tensors) +
                                      ", not " + std::to_string(settings.size()));
  }
  for (const ServerSettings& each : settings) {
    check_number("rate", each.rate);
    check_number("momentum", each.momentum);
    check_number("weight_decay", each.weight_decay);
    check_number("trust", each.trust);
  }
  const auto local =
      std::find_if(settings.begin(), settings.end(), [](const auto& each) { return each.trust != 0.0F; });
  const ServerOptimizer& optimizer = shared_.optimizer;
  if (optimizer.name != "lars" && local != settings.end()) {
    throw Error(ErrorKind::value, "a trust of " + format_number(local->trust) + " is for the optimizer 'lars'");
  }
  if (optimizer.is_adam() &&
      std::any_of(settings.begin(), settings.end(), [](const auto& each) { return each.momentum != 0.0F; })) {
    throw Error(ErrorKind::value,
                "the settings have a momentum, and the optimizer 'adam' takes none: its own is beta1");
  }
}

ServerWorker::Pushed ServerWorker::push(std::span<const ServerSettings> settings, float loss_scale, Skip skip,
                                        WithPull with_pull) {
  Lock lock(mutex_);
  check_usable();
  check_not_finishing();
  check_settings(settings);
  if (!(loss_scale > 0.0F) || !std::isfinite(loss_scale)) {
    throw Error(ErrorKind::value, "loss_scale is above 0 and finite, not " + format_number(loss_scale));
  }
  if (with_pull != WithPull::no) {
    take_notes();
    check_no_pull();
  }
  await_slot(lock);
  copied_.wait(lock, [this] { return copying_ == 0; });
  Note note{.kind = NoteKind::push, .skip = skip, .scale = loss_scale};
  if (with_pull != WithPull::no) {
    expect_answers(with_pull == WithPull::exact);
    note.exact = exact_;
    note.number = pulls_;
    note.pushes = pushes_ + 1;
  }
  const std::size_t tensors = shared_.layout.tensors();
  for (std::size_t i = 0; i < tensors; ++i) {
    if (!ready_.has(i)) {
      std::memset(slot_of_tensor(i), 0, shared_.layout.counts()[i] * size_of(shared_.wire));
    }
  }
  std::fill(left_.begin(), left_.end(), 0);
  send_ranges();
  std::vector<ServerSettings> all(settings.begin(), settings.end());
  all.resize(tensors, settings.front());
  const bool differ = pushes_ == 0 || all != settings_;
  settings_ = std::move(all);
  for (std::size_t k = 0; k < servers(); ++k) {
    send_to((static_cast<std::size_t>(rank()) + k) % servers(), note,
            differ ? std::as_bytes(std::span(settings_)) : std::span<const std::byte>{});
  }
  ready_.forget();
  begin_ranges();
  return {++pushes_, note.number};
}

void ServerWorker::send_to(std::size_t server, const Note& note, std::span<const std::byte> payload) {
  send_note(*shared_.mailbox, shared_.roles.servers[server], shared_.tags.to_server, note, payload);
}

Skip ServerWorker::wait_for_push(std::uint64_t push, Seconds timeout) {
  return naming_the_missing([&] {
    Lock lock(mutex_);
    if (released_ < push) {
      wait(lock, timeout, "push " + std::to_string(push), [&] { return released_ >= push; });
    }
    const auto found = skipped_.find(push);
    return found == skipped_.end() ? Skip::no : found->second;
  });
}

// Server 0 knows who has pushed least.
template <class Work>
auto ServerWorker::naming_the_missing(Work work) -> decltype(work()) {
  try {
    return work();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::timeout) {
      throw;
    }
    std::vector<int> last;
    double fewest = 0.0;
    try {
      const std::vector<double> numbers = report(Report::statistics, 1.0);
      std::size_t at = 3;
      for (int w = 0; w < shared_.roles.workers; ++w) {
        if (w == 0 || numbers[at] <= fewest) {
          last.resize(w == 0 || numbers[at] < fewest ? 0 : last.size());
          last.push_back(w);
          fewest = numbers[at];
        }
        at += 3 + 2 * static_cast<std::size_t>(numbers[at + 2]);
      }
    } catch (const Error&) {
      throw Error(ErrorKind::timeout, std::string(error.what()) + "; rank " + std::to_string(shared_.roles.servers[0]) +
                                          ", which serves, does not answer");
    }
    throw Error(ErrorKind::timeout, std::string(error.what()) + "; fewest pushes, " + format_number(fewest) +
                                        ", have come from " + transport::name_ranks(last));
  }
}

bool ServerWorker::may_go_on(std::uint64_t push) {
  shared_.mailbox->poll();
  const Lock lock(mutex_);
  check_usable();
  take_notes();
  check_usable();
  return released_ >= push;
}

// ---- pulls ----------------------------------------------------------------------------------------------------------

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
  naming_the_missing([&] {
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
  naming_the_missing([&] {
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

// ---- checkpoints ----------------------------------------------------------------------------------------------------

void ServerWorker::load(std::size_t array, std::span<const float* const> tensors) {
  const Lock lock(mutex_);
  check_usable();
  for (std::size_t s = 0; s < servers(); ++s) {
    const std::size_t size = shared_.layout.shard_size(s);
    auto values = std::make_shared<float[]>(std::max<std::size_t>(size, 1));
    for (const TensorPart& part : shared_.layout.parts_of_server(s)) {
      std::copy_n(tensors[part.tensor] + part.begin, part.count, values.get() + part.shard);
    }
    send_to(s, {.kind = NoteKind::load, .number = array});
    const float* const data = values.get();
    static_cast<void>(shared_.mailbox->send(shared_.roles.servers[s], shared_.tags.loaded(), data, size * sizeof(float),
                                            std::move(values)));
  }
}

void ServerWorker::save(std::size_t array, std::span<float* const> tensors, Seconds timeout) {
  Lock lock(mutex_);
  check_usable();
  std::vector<std::shared_ptr<float[]>> shards;
  Letters letters;
  for (std::size_t s = 0; s < servers(); ++s) {
    const std::size_t size = shared_.layout.shard_size(s);
    shards.push_back(std::make_shared_for_overwrite<float[]>(std::max<std::size_t>(size, 1)));
    letters.push_back(shared_.mailbox->receive(shared_.roles.servers[s], shared_.tags.state(), shards.back().get(),
                                               size * sizeof(float), shards.back()));
  }
  ask_all({.kind = NoteKind::state, .number = array, .pushes = pushes_});
  wait(lock, timeout, "the request for the state", [&] { return have_ended(letters); });
  for (std::size_t s = 0; s < servers(); ++s) {
    letters[s]->check();
    for (const TensorPart& part : shared_.layout.parts_of_server(s)) {
      std::copy_n(shards[s].get() + part.shard, part.count, tensors[part.tensor] + part.begin);
    }
  }
}

// Answers come in the order of the requests; one that nobody waits for any more is passed over.
std::vector<double> ServerWorker::report(Report what, Seconds timeout) {
  const std::lock_guard one_at_a_time(reporting_);
  Lock lock(mutex_);
  check_usable();
  ++reports_asked_;
  send_to(0, {.kind = NoteKind::report, .number = static_cast<std::uint64_t>(what)});
  wait(lock, timeout, "the request for a report", [this] { return reports_come_ == reports_asked_; });
  return std::exchange(report_, {});
}

std::size_t ServerWorker::ready_count() const {
  const Lock lock(mutex_);
  return ready_.count();
}

std::uint64_t ServerWorker::pushes() const {
  const Lock lock(mutex_);
  return pushes_;
}

bool ServerWorker::has_failed() const {
  const Lock lock(mutex_);
  return failure_.has_value();
}

void ServerWorker::close(bool orderly) {
  const Lock lock(mutex_);
  if (!std::exchange(closed_, true) && orderly && !failure_) {
    const std::lock_guard nobody_takes(taking_);
    give_back_leases();
    for (std::size_t s = 0; s < servers(); ++s) {
      send_to(s, {.kind = NoteKind::bye});
    }
  }
}

}  // namespace gradientflow::engine

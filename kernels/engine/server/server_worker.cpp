#include "server_worker.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "../../base/text.hpp"
#include "../../base/waits.hpp"

namespace gradientflow::engine {
namespace {

using namespace std::chrono_literals;

constexpr auto between_looks = 50ms;
constexpr double longest_wait = 1e9;

}  // namespace

ServerWorker::ServerWorker(Server::Shared& shared, double timeout, std::function<void()> poll_signals)
    : shared_(shared),
      timeout_(timeout),
      poll_signals_(std::move(poll_signals)),
      safe_(shared.roles.servers.size()),
      ready_(shared.layout.tensors()),
      answers_(shared.roles.servers.size()),
      has_answered_(answers_, true) {
  begin_ranges();
}

void ServerWorker::check_usable() const {
  if (closed_) {
    throw Error(ErrorKind::closed, "the parameter server has been closed");
  }
  if (failure_) {
    throw Error(*failure_);
  }
}

// Throws if a finish has begun. mutex_ held.
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
      if (note.answers) {
        has_answered_[0] = true;
        ++answers_;
      }
      for (const SkippedPush& skipped : received->payload_as<SkippedPush>()) {
        skipped_[skipped.push] = skipped;
      }
      while (skipped_.size() > most_skipped) {
        forgotten_ = skipped_.begin()->first;
        skipped_.erase(skipped_.begin());
      }
    } else if (note.kind == NoteKind::answer) {
      has_answered_[note.number] = true;
      ++answers_;
    } else if (note.kind == NoteKind::safe) {
      safe_[note.number] = std::max(safe_[note.number], note.pushes);
    } else if (note.kind == NoteKind::report) {
      ++reports_come_;
      report_ = received->payload_as<double>();
    } else if (note.kind == NoteKind::failure && !failure_) {
      const std::string text(reinterpret_cast<const char*>(received->payload.data()), received->payload.size());
      failure_.emplace(static_cast<ErrorKind>(note.number), text);
    }
  }
}

// Throws if a rank is lost; a rank that closed in order counts as lost only if it serves.
void ServerWorker::check_losses(const std::string& what) {
  losses_ = shared_.mailbox->losses();
  for (int rank = 0; losses_ > 0 && rank < shared_.mailbox->size(); ++rank) {
    if (shared_.mailbox->has_closed(rank) && shared_.roles.server_at(rank) < 0) {
      continue;
    }
    if (const auto loss = shared_.mailbox->loss_of(rank, what)) {
      // A server's error names the first rank that left.
      const auto deadline = Clock::now() + (is_recoverable_ ? Clock::duration() : waits::error_grace.time());
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

void ServerWorker::wait(Lock& lock, Seconds timeout, const std::string& what, const std::function<bool()>& done) {
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
    std::optional<Server::Helper> helper(server_);
    const bool came = shared_.mailbox->until(
        [&] {
          if (server_ != nullptr) {
            server_->help();
          }
          const Lock held(mutex_);
          if (closed_) {
            return true;
          }
          take_notes();
          return failure_ || done() || shared_.mailbox->losses() != losses_;
        },
        std::min(deadline, soon));
    helper.reset();
    if (poll_signals_) {
      poll_signals_();
    }
    lock.lock();
    if (!came && Clock::now() >= deadline) {
      throw Error(ErrorKind::timeout, what + " of rank " + std::to_string(rank()) + " was not done within " +
                                          format_number(seconds) + " s; it goes on");
    }
  }
}

void ServerWorker::send_to(std::size_t server, const Note& note, std::span<const std::byte> payload) {
  send_note(*shared_.mailbox, shared_.roles.servers[server], shared_.tags.to_server, note, payload);
}

// Adds the ranks with the fewest pushes, which server 0 knows, to `error`, a timeout.
Error ServerWorker::with_slowest_ranks(const Error& error) {
  std::vector<int> last;
  double fewest = 0.0;
  try {
    const std::vector<double> numbers = ask(Query::statistics, waits::statistics.seconds());
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
    return {ErrorKind::timeout, std::string(error.what()) + "; rank " + std::to_string(shared_.roles.servers[0]) +
                                    ", which serves, does not answer"};
  }
  return {ErrorKind::timeout, std::string(error.what()) + "; fewest pushes, " + format_number(fewest) +
                                  ", have come from " + transport::name_ranks(last)};
}

void ServerWorker::make_recoverable(bool is_bounded) {
  const Lock lock(mutex_);
  is_recoverable_ = true;
  is_bounded_ = is_bounded;
}

std::optional<Error> ServerWorker::failure() const {
  const Lock lock(mutex_);
  return failure_;
}

void ServerWorker::close(bool orderly) {
  const Lock lock(mutex_);
  if (!std::exchange(closed_, true) && orderly && !failure_) {
    const std::lock_guard not_taking(taking_);
    give_back_leases();
    for (std::size_t s = 0; s < servers(); ++s) {
      send_to(s, {.kind = NoteKind::closed});
    }
  }
}

}  // namespace gradientflow::engine

// Progress of a mailbox: by waiting threads, and by its own thread while none waits.
#include <algorithm>
#include <utility>

#include "../../base/text.hpp"
#include "../patience.hpp"
#include "mailbox.hpp"
#include "mailbox_alarm.hpp"

namespace gradientflow::transport {
namespace {

using namespace std::chrono_literals;

constexpr auto shortest_nap = 20us;
constexpr auto longest_nap = 5ms;
constexpr std::size_t told_in_errors = 3;

}  // namespace

std::unique_ptr<Mailbox::Arrival> Mailbox::next(int from, const Tags& tags, const Deadline& deadline) {
  std::unique_ptr<Arrival> arrival;
  std::optional<Error> error;
  check_rank(from, true);
  wait_until(deadline, [&] {
    const auto held = lock();
    arrival = find_arrival(from, tags);
    if (arrival == nullptr) {
      error = loss(from, "the receive of a message from " + rank_text(from));
    }
    return arrival != nullptr || error.has_value();
  });
  if (error) {
    throw Error(*error);
  }
  return arrival;
}

bool Mailbox::until(const std::function<bool()>& done, const Deadline& deadline) {
  return wait_until(deadline, [&done] { return done(); });
}

// Tests transfers in flight, and draws messages. Also looks for lost ranks if `look` is true, or if it has not done so
// for a while: a rank that is busy with some ranks must notice the loss of others. Returns true if anything has
// happened.
bool Mailbox::progress(bool look) {
  if (closed_ && in_flight_.empty() && lost_with_.empty()) {
    return false;
  }
  const std::size_t before = in_flight_.size();
  try {
    endpoint_->check_not_ended();
    test_all();
    const bool ended = in_flight_.size() != before;
    send_parts();
    const bool drawn = !closed_ && draw_messages();
    end_lost();
    if (const auto now = Clock::now(); !closed_ && (look || now - looked_ >= longest_nap)) {
      looked_ = now;
      check_peers();
    }
    return drawn || ended;
  } catch (const Error& error) {
    end_all(error);
    return true;
  }
}

void Mailbox::attend(bool look) {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) {
    return;  // another thread makes progress
  }
  progress(look);
  finish(lock);
}

void Mailbox::poll() {
  if (!is_forked()) {
    attend(false);
  }
}

template <class Done>
bool Mailbox::wait_until(const Deadline& deadline, Done done) {
  check_process();
  const auto leave = [](std::atomic<int>* waiters) { --*waiters; };
  ++waiters_;
  const std::unique_ptr<std::atomic<int>, decltype(leave)> waiter(&waiters_, leave);
  Patience patience(1e9);
  bool look = false;
  while (!done()) {
    attend(look);
    if (done()) {
      return true;
    }
    if (deadline && Clock::now() >= *deadline) {
      return false;
    }
    look = endpoint_->pause(patience);
  }
  return true;
}

bool Mailbox::ended_by(const Transfer& transfer, const Deadline& deadline) {
  return wait_until(deadline, [&] { return transfer.ended(); });
}

void Mailbox::wait(const Transfer& transfer, std::optional<double> seconds) {
  Deadline deadline;
  if (seconds) {
    deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                  std::chrono::duration<double>(std::clamp(*seconds, 0.0, 1e9)));
  }
  if (!ended_by(transfer, deadline)) {
    throw timeout_error(transfer, seconds.value_or(0.0));
  }
  transfer.check();
}

Error Mailbox::timeout_error(const Transfer& transfer, double seconds) const {
  std::string text = transfer.what() + " was not done within " + format_number(seconds) + " s on rank " +
                     std::to_string(rank()) + "; it goes on";
  const auto held = lock();
  if (transfer.kind_ == Request::Kind::receive && !arrived_.empty()) {
    text += ". Nobody has asked for ";
    std::size_t told = 0;
    for (auto at = arrived_.begin(); at != arrived_.end() && told < told_in_errors; ++at, ++told) {
      const Envelope& envelope = at->envelope();
      text += (told > 0 ? ", " : "") + std::to_string(envelope.bytes) + " bytes from " + rank_text(envelope.source) +
              " with tag " + std::to_string(envelope.tag);
    }
    text += arrived_.size() > told_in_errors ? ", ..." : "";
  }
  return {ErrorKind::timeout, text};
}

// The thread holds the mailbox only while it works, and uses the endpoint only before the mailbox is closed: no caller
// has to wait for it to end.
void Mailbox::thread_main(const std::weak_ptr<Mailbox>& mailbox, const std::shared_ptr<Alarm>& alarm) {
  std::chrono::nanoseconds nap = shortest_nap;
  const auto work = [&] {
    const std::shared_ptr<Mailbox> self = mailbox.lock();
    try {
      return self != nullptr && self->work(nap);
    } catch (const std::bad_alloc&) {  // tries again later
      return true;
    }
  };
  while (work()) {
    alarm->sleep(nap);
  }
}

// Returns true if it is to be called again, after a nap.
bool Mailbox::work(std::chrono::nanoseconds& nap) {
  std::unique_lock lock(mutex_);
  if (closed_) {
    return false;
  }
  const bool moved = progress(false);
  const auto callbacks = std::exchange(callbacks_, {});
  const bool is_pending = !posted_.empty() || !in_flight_.empty() || !lost_with_.empty() || !callbacks.empty();
  const bool sleeps_in_endpoint = is_pending && waiters_ == 0 && limits_.wakes;
  if (sleeps_in_endpoint) {
    nap = std::chrono::nanoseconds(0);
  } else if (is_pending && waiters_ == 0) {
    nap = moved ? shortest_nap : std::min<std::chrono::nanoseconds>(nap * 5 / 4, longest_nap);
  } else if (is_pending || moved || nap != longest_nap) {
    nap = longest_nap;  // naps once more before it rests: short messages, one after another, would wake it each time
  } else {
    alarm_->rest();
    nap = shortest_nap;
  }
  finish(lock);
  for (const auto& callback : callbacks) {
    callback();
  }
  if (sleeps_in_endpoint) {
    Patience patience = Patience::in_background();
    endpoint_->pause(patience);
  }
  return true;
}

}  // namespace gradientflow::transport

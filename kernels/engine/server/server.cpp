#include "server.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "../../base/waits.hpp"

namespace gradientflow::engine {

Server::Server(Shared& shared, std::size_t number, std::size_t threads, MakePolicy make_policy)
    : shared_(shared),
      number_(number),
      make_policy_(std::move(make_policy)),
      shard_(shared.layout, shared.memory, number, shared.roles.workers, shared.wire, shared.optimizer, threads),
      workers_(static_cast<std::size_t>(shared.roles.workers)),
      log_(shared.roles.workers) {
  if (leads()) {
    policy_ = make_policy_();
  }
}

void Server::run(const std::function<void()>& poll_signals) {
  try {
    serve(poll_signals);
  } catch (const Error& error) {
    fail(error);
    throw;
  } catch (const std::exception& error) {
    fail(Error(ErrorKind::internal, error.what()));
    throw;
  }
}

void Server::serve(const std::function<void()>& poll_signals) {
  for (int w = 0; w < shared_.roles.workers; ++w) {
    expect_push(w);
  }
  const auto has_work = [this] {
    if (stops_ || shared_.mailbox->losses() != losses_) {
      return true;
    }
    const std::unique_lock held(serving_, std::try_to_lock);
    return held && (helper_error_ != nullptr || has_copy_arrived() || (is_end_due() && can_do(decisions_.front())) ||
                    ((helpers_ == 0 || !may_be_helped()) &&
                     (shared_.mailbox->has(shared_.tags.to_server) ||
                      std::any_of(workers_.begin(), workers_.end(),
                                  [this](const Worker& each) { return !each.notes.empty() && is_whole(each); }))));
  };
  const auto have_closed = [this] {
    return std::all_of(workers_.begin(), workers_.end(), [](const Worker& each) { return each.closed; });
  };
  std::unique_lock lock(serving_);
  serves_ = true;
  try {
    while (!stops_ && !have_closed()) {
      const int losses = shared_.mailbox->losses();
      const bool moved = step(false);
      if (helper_error_ != nullptr) {
        std::rethrow_exception(helper_error_);
      }
      if (losses != losses_) {
        losses_ = losses;
        check_losses();
      }
      if (!moved && !have_closed()) {
        lock.unlock();
        shared_.mailbox->until(has_work, Clock::now() + between_looks);
        if (poll_signals) {
          poll_signals();
        }
        lock.lock();
      }
    }
  } catch (...) {
    if (!lock) {
      lock.lock();
    }
    serves_ = false;
    throw;
  }
  serves_ = false;
}

// Does all work that is possible now; serving_ must be held. Returns true if there was work. A new policy is made only
// in the server's own thread, because making a policy may run Python.
bool Server::step(bool helps) {
  bool moved = take_notes();
  moved = take_copies() || moved;
  for (int w = 0; w < shared_.roles.workers; ++w) {
    moved = process_notes(w) || moved;
  }
  while (!decisions_.empty() && !(helps && is_end_due()) && can_do(decisions_.front())) {
    const Decision decision = std::move(decisions_.front());
    decisions_.pop_front();
    carry_out(decision);
    moved = true;
  }
  return moved;
}

void Server::help() noexcept {
  const std::unique_lock held(serving_, std::try_to_lock);
  if (!held || !serves_ || helper_error_ != nullptr || !may_be_helped()) {
    return;
  }
  try {
    step(true);
  } catch (...) {
    helper_error_ = std::current_exception();
  }
}

bool Server::take_notes() {
  bool any = false;
  while (auto received = take_note(*shared_.mailbox, shared_.tags.to_server)) {
    take(std::move(*received));
    any = true;
  }
  return any;
}

void Server::take(ReceivedNote received) {
  const int source = received.source;
  switch (received.note.kind) {
    case NoteKind::push:
      if (received.note.number > 0) {
        worker(source).pulls.push_back({.source = source, .note = received.note, .payload = {}});
        answer_pulls(source);  // server 0 may have released the worker before the worker's push arrived
      }
      [[fallthrough]];
    case NoteKind::depart:
    case NoteKind::closed:
      worker(source).notes.push_back(std::move(received));
      return;
    case NoteKind::pull:
    case NoteKind::state:
      worker(source).pulls.push_back(std::move(received));
      answer_pulls(source);
      return;
    case NoteKind::load:
      load(received);
      return;
    case NoteKind::decision: {
      const auto words = received.payload_as<std::int32_t>();
      for (std::size_t at = 0; at < words.size();) {
        Decision decision{static_cast<Decision::Kind>(words[at]), {}};
        const auto count = static_cast<std::size_t>(words[at + 1]);
        decision.workers.assign(words.begin() + static_cast<std::ptrdiff_t>(at + 2),
                                words.begin() + static_cast<std::ptrdiff_t>(at + 2 + count));
        decisions_.push_back(std::move(decision));
        at += 2 + count;
      }
      return;
    }
    case NoteKind::report:
      report(source, received.note.number);
      return;
    case NoteKind::norms:
      norms_[received.note.round][received.note.number] = received.payload_as<double>();
      return;
    case NoteKind::copy:
      expect_copy(received);
      return;
    case NoteKind::copied:
      confirm();
      return;
    case NoteKind::safe:
    case NoteKind::release:
    case NoteKind::answer:
    case NoteKind::failure:
      return;
  }
}

// Throws if a worker has closed in order while others still push.
void Server::check_closed_workers() const {
  const bool goes_on = std::any_of(workers_.begin(), workers_.end(), [](const Worker& each) {
    return each.departed || !each.pushes.empty() ||
           std::any_of(each.notes.begin(), each.notes.end(),
                       [](const ReceivedNote& received) { return received.note.kind != NoteKind::closed; });
  });
  const auto closed = std::find_if(workers_.begin(), workers_.end(), [](const Worker& each) { return each.closed; });
  if (leads() && goes_on && closed != workers_.end()) {
    throw Error(ErrorKind::peer, "rank " + std::to_string(closed - workers_.begin()) +
                                     " has closed the parameter server, and others push on");
  }
}

void Server::check_losses() {
  for (int rank = 0; rank < shared_.mailbox->size(); ++rank) {
    const auto loss = shared_.mailbox->loss_of(rank, "the parameter server");
    if (!loss) {
      continue;
    }
    take_notes();  // notes that the rank sent earlier have arrived
    if (rank >= shared_.roles.workers || (!worker(rank).closed && !has_closing_note(worker(rank)))) {
      if (!recovery_.is_on) {  // recovery ignores which rank gave up first: all continue without it
        // Waits for another server's error, because of which the rank may have given up.
        shared_.mailbox->until([this] { return stops_.load(); }, Clock::now() + waits::error_grace.time());
      }
      throw Error(*loss);
    }
  }
}

bool Server::has_closing_note(const Worker& of) {
  return std::any_of(of.notes.begin(), of.notes.end(),
                     [](const ReceivedNote& received) { return received.note.kind == NoteKind::closed; });
}

std::optional<Error> Server::failure() const {
  const std::lock_guard held(failing_);
  return failure_;
}

void Server::fail(const Error& error) noexcept {
  try {
    {
      const std::lock_guard held(failing_);
      failure_ = error;
    }
    const std::string text = error.what();
    for (int w = 0; w < shared_.roles.workers; ++w) {
      if (!worker(w).closed) {
        send_note(*shared_.mailbox, w, shared_.tags.to_worker,
                  {.kind = NoteKind::failure, .number = static_cast<std::uint64_t>(error.kind())},
                  std::as_bytes(std::span(text)));
      }
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): they see that this rank has closed
  }
}

}  // namespace gradientflow::engine

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <utility>

#include "server.hpp"

namespace gradientflow::engine {

// Begins to receive a worker's next push, which arrives in pieces, in the order of the ranges.
void Server::expect_push(int number) {
  if (is_here(number)) {
    return;
  }
  Worker& of = worker(number);
  const std::size_t push_bytes = shard_.size() * size_of(shared_.wire);
  if (of.received == nullptr) {
    of.received = std::make_shared_for_overwrite<std::byte[]>(std::max<std::size_t>(push_bytes, 1));
  }
  of.parts.clear();
  for (std::size_t r = 0; r < shared_.layout.ranges().size(); ++r) {
    const Piece& piece = shared_.layout.piece(r, number_);
    if (piece.count > 0) {
      of.parts.push_back(shared_.mailbox->receive(
          number, shared_.tags.pushed(), of.received.get() + piece.shard * size_of(shared_.wire),
          piece.count * size_of(shared_.wire), of.received, transport::Route::in_parts));
    }
  }
}

// True if the worker's next note can be processed: all pieces of a push must be here.
bool Server::is_whole(const Worker& of) const {
  if (of.notes.front().note.kind != NoteKind::push) {
    return true;
  }
  const bool is_remote = !is_here(of.notes.front().source);
  return !is_remote || (of.pushes.empty() && std::all_of(of.parts.begin(), of.parts.end(),
                                                         [](const auto& transfer) { return transfer->ended(); }));
}

bool Server::process_notes(int number) {
  Worker& of = worker(number);
  bool any = false;
  while (!of.notes.empty() && is_whole(of)) {
    const ReceivedNote received = std::move(of.notes.front());
    of.notes.pop_front();
    any = true;
    if (received.note.kind == NoteKind::push) {
      process_push(number, received);
    } else if (received.note.kind == NoteKind::depart) {
      of.departed = true;
      if (leads()) {
        log_.departed(number);
        ask_policy(number, true);
        if (std::all_of(workers_.begin(), workers_.end(), [](const Worker& each) { return each.departed; })) {
          decide({{Decision::Kind::end, {}}});
        }
      }
    } else {
      of.closed = true;
      check_closed_workers();
    }
  }
  return any;
}

void Server::process_push(int number, const ReceivedNote& received) {
  Worker& of = worker(number);
  for (const auto& transfer : of.parts) {
    transfer->check();
  }
  const std::span<const std::byte> payload = received.payload;
  const std::span<const std::byte> has = payload.last(received.note.is_partial ? shared_.layout.tensors() : 0);
  const std::span<const std::byte> settings = payload.first(payload.size() - has.size());
  if (!settings.empty()) {
    of.settings = std::make_shared<const std::vector<ServerSettings>>(values_of<ServerSettings>(settings));
  }
  of.pushes.push_back(
      {received.note.skip, received.note.tensor, received.note.scale, of.settings, values_of<std::uint8_t>(has)});
  if (leads()) {
    log_.pushed(number);
    ask_policy(number, false);
    check_closed_workers();
  }
}

void Server::ask_policy(int number, bool departed) {
  const double seconds = log_.now();
  const policy::Answer answer = departed ? policy_->departed(number, seconds) : policy_->pushed(number, seconds);
  log_.answered(number, seconds, departed, answer);
  std::vector<Decision> decisions;
  for (const auto& round : answer.apply) {
    decisions.push_back({Decision::Kind::round, round});
  }
  if (!answer.release.empty()) {
    decisions.push_back({Decision::Kind::release, answer.release});
  }
  decide(std::move(decisions));
}

// Sends server 0's decisions to all servers. Each decision is sent as its kind, its number of workers, and the workers.
void Server::decide(std::vector<Decision> decisions) {
  std::vector<std::int32_t> words;
  for (const Decision& decision : decisions) {
    words.push_back(static_cast<std::int32_t>(decision.kind));
    words.push_back(static_cast<std::int32_t>(decision.workers.size()));
    words.insert(words.end(), decision.workers.begin(), decision.workers.end());
  }
  for (std::size_t s = 1; s < shared_.roles.servers.size() && !words.empty(); ++s) {
    send_note(*shared_.mailbox, shared_.roles.servers[s], shared_.tags.to_server, {.kind = NoteKind::decision},
              std::as_bytes(std::span(words)));
  }
  std::move(decisions.begin(), decisions.end(), std::back_inserter(decisions_));
}

bool Server::can_do(const Decision& decision) {
  // The decision to end waits until all workers have asked for the weights at that end, which must not include later
  // pushes.
  if (decision.kind == Decision::Kind::end) {
    return std::all_of(workers_.begin(), workers_.end(), [this](const Worker& each) {
      return std::any_of(each.pulls.begin(), each.pulls.end(),
                         [this](const ReceivedNote& pull) { return pull.note.round == ends_ + 1; });
    });
  }
  if (decision.kind != Decision::Kind::round) {
    return true;
  }
  if (!has_weights_ || std::any_of(decision.workers.begin(), decision.workers.end(),
                                   [this](int each) { return worker(each).pushes.empty(); })) {
    return false;
  }
  check_settings(decision.workers);
  return has_norms(gather(decision.workers));
}

void Server::carry_out(const Decision& decision) {
  switch (decision.kind) {
    case Decision::Kind::round:
      apply_round(decision.workers);
      return;
    case Decision::Kind::release:
      std::for_each(decision.workers.begin(), decision.workers.end(), [this](int each) { release(each); });
      return;
    case Decision::Kind::end:
      end_epoch();
      return;
  }
}

void Server::release(int number) {
  Worker& of = worker(number);
  ++of.released;
  const bool answers = answer_due(number);
  if (leads()) {
    log_.went_on(number);
    send_note(*shared_.mailbox, number, shared_.tags.to_worker,
              {.kind = NoteKind::release, .answers = answers, .pushes = of.released, .round = rounds_},
              std::as_bytes(std::span(of.skipped)));
  } else if (answers) {
    tell_answer(number);
  }
  of.skipped.clear();
}

// Begins a new epoch, as all workers have departed.
void Server::end_epoch() {
  for (int w = 0; w < shared_.roles.workers; ++w) {
    if (leads() && !worker(w).pushes.empty()) {
      throw Error(ErrorKind::value, "all workers have departed, and the policy has not applied " +
                                        std::to_string(worker(w).pushes.size()) + " pushes of worker " +
                                        std::to_string(w));
    }
    if (worker(w).released < worker(w).applied) {
      worker(w).released = worker(w).applied - 1;
      release(w);
    }
    worker(w).departed = false;
  }
  log_.ended();
  ++ends_;
  if (leads()) {
    policy_ = make_policy_();
  }
  for (int w = 0; w < shared_.roles.workers; ++w) {
    answer_pulls(w);
  }
}

}  // namespace gradientflow::engine

#include "server.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

#include "../../base/text.hpp"

namespace gradientflow::engine {
namespace {

using namespace std::chrono_literals;

constexpr auto between_looks = 50ms;
constexpr auto last_words = 1s;

}  // namespace

Server::Server(Shared& shared, std::size_t number, std::size_t threads, MakePolicy make_policy)
    : shared_(shared),
      number_(number),
      make_policy_(std::move(make_policy)),
      shard_(shared.layout, shared.memory, number, shared.roles.workers, shared.wire, shared.optimizer, threads,
             [this](int of) { return !shared_.mailbox->loss_of(of, "a copy"); }),
      workers_(static_cast<std::size_t>(shared.roles.workers)),
      log_(shared.roles.workers) {
  if (leads()) {
    policy_ = make_policy_();
  }
}

void Server::run(const std::function<void()>& attend) {
  try {
    serve(attend);
  } catch (const Error& error) {
    fail(error);
    throw;
  } catch (const std::exception& error) {
    fail(Error(ErrorKind::internal, error.what()));
    throw;
  }
}

void Server::serve(const std::function<void()>& attend) {
  for (int w = 0; w < shared_.roles.workers; ++w) {
    expect_push(w);
  }
  const auto has_work = [this] {
    return stops_ || shared_.mailbox->has(shared_.tags.to_server) || shared_.mailbox->losses() != losses_ ||
           std::any_of(workers_.begin(), workers_.end(),
                       [this](const Worker& each) { return !each.notes.empty() && is_whole(each); });
  };
  const auto have_closed = [this] {
    return std::all_of(workers_.begin(), workers_.end(), [](const Worker& each) { return each.closed; });
  };
  while (!stops_ && !have_closed()) {
    const int losses = shared_.mailbox->losses();
    bool moved = take_notes();
    for (int w = 0; w < shared_.roles.workers; ++w) {
      moved = take_up(w) || moved;
    }
    while (!decisions_.empty() && can_do(decisions_.front())) {
      const Decision decision = std::move(decisions_.front());
      decisions_.pop_front();
      carry_out(decision);
      moved = true;
    }
    if (losses != losses_) {
      losses_ = losses;
      check_losses();
    }
    if (!moved && !have_closed()) {
      shared_.mailbox->until(has_work, Clock::now() + between_looks);
      if (attend) {
        attend();
      }
    }
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
        answer_pulls(source);  // server 0 may have let the worker go on before its push came here
      }
      [[fallthrough]];
    case NoteKind::depart:
    case NoteKind::bye:
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
    case NoteKind::release:
    case NoteKind::answer:
    case NoteKind::failure:
      return;
  }
}

void Server::load(const ReceivedNote& received) {
  auto values = std::make_shared_for_overwrite<float[]>(std::max<std::size_t>(shard_.size(), 1));
  float* const data = values.get();
  const auto letter =
      shared_.mailbox->receive(received.source, shared_.tags.loaded(), data, shard_.size() * sizeof(float), values);
  while (!shared_.mailbox->ended_by(*letter, Clock::now() + between_looks)) {
    if (stops_) {
      return;
    }
  }
  letter->check();
  shard_.load(received.note.number, data);
  ++changes_;
  if (received.note.number == 0) {
    has_weights_ = true;
    for (int w = 0; w < shared_.roles.workers; ++w) {
      answer_pulls(w);
    }
  }
}

// Receives a worker's next push, which comes in pieces, in the order of the ranges.
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
          piece.count * size_of(shared_.wire), of.received, transport::Way::in_parts));
    }
  }
}

// Whether the next note of a worker can be taken up.
bool Server::is_whole(const Worker& of) const {
  if (of.notes.front().note.kind != NoteKind::push) {
    return true;
  }
  const bool is_remote = !is_here(of.notes.front().source);
  return !is_remote || (of.pushes.empty() && std::all_of(of.parts.begin(), of.parts.end(),
                                                         [](const auto& letter) { return letter->ended(); }));
}

bool Server::take_up(int number) {
  Worker& of = worker(number);
  bool any = false;
  while (!of.notes.empty() && is_whole(of)) {
    const ReceivedNote received = std::move(of.notes.front());
    of.notes.pop_front();
    any = true;
    if (received.note.kind == NoteKind::push) {
      take_up_push(number, received);
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
      check_farewells();
    }
  }
  return any;
}

void Server::take_up_push(int number, const ReceivedNote& received) {
  Worker& of = worker(number);
  for (const auto& letter : of.parts) {
    letter->check();
  }
  if (!received.payload.empty()) {
    of.settings = std::make_shared<const std::vector<ServerSettings>>(received.payload_as<ServerSettings>());
  }
  of.pushes.push_back({received.note.skip, received.note.scale, of.settings});
  if (leads()) {
    log_.pushed(number);
    ask_policy(number, false);
    check_farewells();
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
  if (!answer.go_on.empty()) {
    decisions.push_back({Decision::Kind::go_on, answer.go_on});
  }
  decide(std::move(decisions));
}

// Of server 0: for all servers.
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
    case Decision::Kind::go_on:
      std::for_each(decision.workers.begin(), decision.workers.end(), [this](int each) { release(each); });
      return;
    case Decision::Kind::end:
      end_epoch();
      return;
  }
}

Server::Round Server::gather(const std::vector<int>& workers) {
  const Push& first = worker(workers.front()).pushes.front();
  Round round{{}, Skip::no, 1.0F / first.scale, first.settings};
  for (const int w : workers) {
    const Worker& of = worker(w);
    round.skip = std::max(round.skip, of.pushes.front().skip);
    round.contributions.push_back(is_here(w) ? Contribution{shared_.memory.slot(w, of.applied + 1), true}
                                             : Contribution{of.received.get(), false});
  }
  return round;
}

// Whether what LARS needs of the next round is there, of all servers. This one tells the others its part.
bool Server::has_norms(const Round& round) {
  const bool is_local = std::any_of(round.settings->begin(), round.settings->end(),
                                    [](const ServerSettings& each) { return each.trust != 0.0F; });
  if (!is_local || round.skip != Skip::no) {
    return true;
  }
  auto& norms = norms_[rounds_ + 1];
  if (!norms.contains(number_)) {
    norms[number_] = shard_.norms(round.contributions, *round.settings, round.scale);
    for (std::size_t s = 0; s < shared_.roles.servers.size(); ++s) {
      if (s != number_) {
        send_note(*shared_.mailbox, shared_.roles.servers[s], shared_.tags.to_server,
                  {.kind = NoteKind::norms, .number = number_, .round = rounds_ + 1},
                  std::as_bytes(std::span(norms[number_])));
      }
    }
  }
  return norms.size() == shared_.roles.servers.size();
}

// Norms are added up in the order of the servers, which is the same on all of them.
std::vector<float> Server::rates_of(const Round& round) {
  std::vector<float> rates;
  const auto norms = norms_.extract(rounds_ + 1);
  for (std::size_t i = 0; i < round.settings->size(); ++i) {
    const ServerSettings& setting = (*round.settings)[i];
    rates.push_back(setting.rate);
    if (setting.trust == 0.0F || norms.empty()) {
      continue;
    }
    double weights = 0.0;
    double gradient = 0.0;
    for (const auto& [server, sums] : norms.mapped()) {
      weights += sums[2 * i];
      gradient += sums[2 * i + 1];
    }
    weights = std::sqrt(weights);
    gradient = std::sqrt(gradient);
    if (weights > 0.0 && gradient > 0.0) {
      const double rate = static_cast<double>(setting.rate) * static_cast<double>(setting.trust) * weights /
                          (gradient + static_cast<double>(setting.weight_decay) * weights);
      rates.back() = static_cast<float>(std::min(rate, static_cast<double>(std::numeric_limits<float>::max())));
    }
  }
  return rates;
}

void Server::apply_round(const std::vector<int>& workers) {
  const Round round = gather(workers);
  const std::vector<float> rates = rates_of(round);
  ++rounds_;
  const std::vector<ReceivedNote> pulls = pulls_after_round();
  std::size_t ranges = 0;  // that have been sent
  const auto send_to_all = [&](std::size_t end) {
    for (; ranges < end; ++ranges) {
      for (const ReceivedNote& pull : pulls) {
        send_weights(pull.source, pull.note.exact, ranges);
        worker(pull.source).has_weights = true;
      }
    }
  };
  if (round.skip == Skip::no) {
    ++changes_;
    if (pulls.empty()) {
      shard_.apply(round.contributions, *round.settings, rates, round.scale);
    } else {
      shard_.apply(round.contributions, *round.settings, rates, round.scale, send_to_all);
    }
  }
  send_to_all(shared_.layout.ranges().size());
  for (const int w : workers) {
    Worker& of = worker(w);
    of.pushes.pop_front();
    ++of.applied;
    if (round.skip != Skip::no) {
      of.skipped.insert(of.skipped.end(), {of.applied, static_cast<std::uint64_t>(round.skip)});
    }
    if (is_here(w)) {
      shared_.memory.word(number_, w).applied.store(of.applied, std::memory_order_release);
    } else {
      expect_push(w);
    }
  }
}

void Server::check_settings(const std::vector<int>& round) {
  const Push& first = worker(round.front()).pushes.front();
  const auto refuse = [&](int other, const std::string& what, float one, float two) {
    throw Error(ErrorKind::mismatch, "the pushes of one round have different settings: " + what + " is " +
                                         format_number(one) + " on rank " + std::to_string(round.front()) + " and " +
                                         format_number(two) + " on rank " + std::to_string(other));
  };
  for (const int w : round) {
    const Push& push = worker(w).pushes.front();
    if (push.scale != first.scale) {
      refuse(w, "loss_scale", first.scale, push.scale);
    }
    if (push.settings == first.settings) {
      continue;
    }
    for (std::size_t i = 0; i < push.settings->size(); ++i) {
      const ServerSettings& one = (*first.settings)[i];
      const ServerSettings& two = (*push.settings)[i];
      const std::string of = " of " + shared_.name_of_tensor(i);
      if (one.rate != two.rate) {
        refuse(w, "rate" + of, one.rate, two.rate);
      }
      if (one.momentum != two.momentum) {
        refuse(w, "momentum" + of, one.momentum, two.momentum);
      }
      if (one.weight_decay != two.weight_decay) {
        refuse(w, "weight_decay" + of, one.weight_decay, two.weight_decay);
      }
      if (one.trust != two.trust) {
        refuse(w, "trust" + of, one.trust, two.trust);
      }
    }
  }
}

void Server::release(int number) {
  Worker& of = worker(number);
  ++of.released;
  if (leads()) {
    log_.went_on(number);
    send_note(*shared_.mailbox, number, shared_.tags.to_worker,
              {.kind = NoteKind::release, .pushes = of.released, .round = rounds_},
              std::as_bytes(std::span(of.skipped)));
  }
  of.skipped.clear();
  answer_pulls(number);
}

// Rounds, ends, and what the log has; or the trace.
void Server::report(int number, std::uint64_t what) {
  std::vector<double> numbers = log_.trace();
  if (what == 0) {
    numbers = log_.statistics();
    numbers.insert(numbers.begin(), {static_cast<double>(rounds_), static_cast<double>(ends_)});
  }
  send_note(*shared_.mailbox, number, shared_.tags.to_worker, {.kind = NoteKind::report},
            std::as_bytes(std::span(numbers)));
}

// All workers have departed, and begin afresh.
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

bool Server::is_due(const ReceivedNote& pull, std::uint64_t released) const {
  return has_weights_ && released >= pull.note.pushes && ends_ >= pull.note.round;
}

void Server::answer_pulls(int number) {
  Worker& of = worker(number);
  std::erase_if(of.pulls, [&](const ReceivedNote& pull) {
    const bool is_due = this->is_due(pull, of.released);
    if (is_due) {
      answer(number, pull);
    }
    return is_due;
  });
}

// Pulls of workers of other nodes that come next after the round about to be applied, before anything else changes:
// weights are sent to them range by range, while later ranges are still updated.
std::vector<ReceivedNote> Server::pulls_after_round() {
  std::vector<ReceivedNote> pulls;
  for (auto next = decisions_.begin(); next != decisions_.end() && next->kind == Decision::Kind::go_on; ++next) {
    for (const int w : next->workers) {
      std::copy_if(worker(w).pulls.begin(), worker(w).pulls.end(), std::back_inserter(pulls),
                   [&](const ReceivedNote& pull) {
                     return !is_here(w) && pull.note.kind != NoteKind::state && is_due(pull, worker(w).released + 1);
                   });
    }
  }
  return pulls;
}

void Server::answer(int number, const ReceivedNote& pull) {
  if (pull.note.kind == NoteKind::state) {
    send_array(number, pull.note.number);
    return;
  }
  if (is_here(number)) {
    shard_.lease_to(number, pull.note.exact);
  } else if (!std::exchange(worker(number).has_weights, false)) {
    for (std::size_t r = 0; r < shared_.layout.ranges().size(); ++r) {
      send_weights(number, pull.note.exact, r);
    }
  }
  send_note(*shared_.mailbox, number, shared_.tags.to_worker,
            {.kind = NoteKind::answer, .number = number_, .version = shard_.version()});
}

// From a copy for all workers that pull the same weights, made range by range. What is still on its way is not written
// to.
void Server::send_weights(int number, bool exact, std::size_t range) {
  Copy& copy = copies_[exact ? 1 : 0];
  const std::size_t item = exact ? sizeof(float) : size_of(shared_.wire);
  if (copy.values == nullptr || copy.changes != changes_) {
    if (copy.values == nullptr || copy.values.use_count() > 1) {
      copy.values = std::make_shared_for_overwrite<std::byte[]>(std::max<std::size_t>(shard_.size() * item, 1));
    }
    copy.ranges = 0;
    copy.changes = changes_;
  }
  const Piece& piece = shared_.layout.piece(range, number_);
  std::byte* const values = copy.values.get() + piece.shard * item;
  if (range == copy.ranges) {
    const std::byte* const weights =
        exact ? reinterpret_cast<const std::byte*>(shard_.latest()) : shard_.latest_travelling();
    std::memcpy(values, weights + piece.shard * item, piece.count * item);
    ++copy.ranges;
  }
  if (piece.count > 0) {
    static_cast<void>(shared_.mailbox->send(number, shared_.tags.pulled(), values, piece.count * item, copy.values,
                                            transport::Way::in_parts));
  }
}

void Server::send_array(int number, std::size_t array) {
  auto values = std::make_shared<const std::vector<float>>(shard_.array(array));
  const float* const data = values->data();
  const std::size_t bytes = values->size() * sizeof(float);
  static_cast<void>(shared_.mailbox->send(number, shared_.tags.state(), data, bytes, std::move(values)));
}

// A worker that has closed in order is missed only where others go on without it.
void Server::check_farewells() const {
  const bool goes_on = std::any_of(workers_.begin(), workers_.end(), [](const Worker& each) {
    return each.departed || !each.pushes.empty() ||
           std::any_of(each.notes.begin(), each.notes.end(),
                       [](const ReceivedNote& received) { return received.note.kind != NoteKind::bye; });
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
    take_notes();  // its last words have come before
    if (rank >= shared_.roles.workers || (!worker(rank).closed && !says_bye(worker(rank)))) {
      // Who has given up after an error was told by another server, which knows why: its words come first.
      shared_.mailbox->until([this] { return stops_.load(); }, Clock::now() + last_words);
      throw Error(*loss);
    }
  }
}

bool Server::says_bye(const Worker& of) {
  return std::any_of(of.notes.begin(), of.notes.end(),
                     [](const ReceivedNote& received) { return received.note.kind == NoteKind::bye; });
}

void Server::fail(const Error& error) noexcept {
  try {
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

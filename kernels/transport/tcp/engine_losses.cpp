// Fate of the ranks that an engine has lost.
#include <algorithm>
#include <string_view>

#include "../../base/text.hpp"
#include "engine.hpp"

namespace gradientflow::transport::tcp {
namespace {

// Factor on the patience of the higher rank. If only the connection between two ranks has broken, this makes the lower
// rank give up first, so that all other ranks hear of one loss, not of two.
constexpr double patience_of_higher_rank = 1.5;

constexpr double for_ever = 1e9;

constexpr std::string_view died = "has died: ";
constexpr std::string_view taken = "has been taken for dead: ";

// Returns the reason in a loss_text(), which this rank or another rank has made.
std::string reason_in(std::string_view text) {
  for (const std::string_view words : {died, taken}) {
    if (text.starts_with(words)) {
      return std::string(text.substr(words.size()));
    }
  }
  return std::string(text);
}

}  // namespace

std::string Engine::loss_text(int rank) const {
  const Peer& other = peers_[static_cast<std::size_t>(rank)];
  switch (other.fate) {
    case Fate::alive:
    case Fate::left:
      return "has ended";
    case Fate::apart:
      return "has taken this rank for dead, and goes on without it";
    case Fate::excluded:
      return std::string(taken) + other.how;
    case Fate::gone:
    case Fate::lost:
    case Fate::silent:
      break;
  }
  return std::string(died) + other.how;
}

std::optional<std::string> Engine::death_of(int rank) {
  const std::lock_guard lock(mutex_);
  const Fate fate = peer(rank).fate;
  return fate == Fate::alive || fate == Fate::left ? std::nullopt : std::optional(loss_text(rank));
}

Greeting Engine::greeting_to(int rank, Greeting::Purpose purpose) const {
  Greeting greeting;
  greeting.purpose = purpose;
  greeting.from = static_cast<std::uint32_t>(rank_);
  greeting.to = static_cast<std::uint32_t>(rank);
  greeting.token = token_;
  return greeting;
}

// Finds out if a rank still lives whose connection has ended, and that has sent nothing since.
void Engine::probe_lost_rank(int rank) {
  Peer& other = peer(rank);
  if (other.probe == nullptr) {
    other.probe = std::make_unique<Probe>(numeric_address(other.address), greeting_to(rank));
  }
  switch (other.probe->look()) {
    case Probe::Answer::none:
    case Probe::Answer::closed:
      return;
    case Probe::Answer::refused:
      other.fate = Fate::gone;
      break;
    case Probe::Answer::unreachable:
      other.fate = Fate::silent;
      break;
    case Probe::Answer::excluded:
      other.fate = Fate::apart;
      break;
  }
  other.probe.reset();
}

std::optional<Sign> Engine::sign_of(int rank, bool is_alive) {
  const std::lock_guard lock(mutex_);
  Peer& other = peer(rank);
  if (!is_alive) {
    make_progress(rank);  // the last message of that rank may say that it has excluded this rank
    if (other.fate == Fate::alive || other.fate == Fate::lost || other.fate == Fate::silent) {
      end_peer(rank, Fate::gone, "its process has ended");
      other.fate = Fate::gone;
      wake_waiters();
    }
  } else if (other.fate == Fate::lost) {
    probe_lost_rank(rank);
  }
  const std::chrono::duration<double> patience(options_.host_timeout * (rank < rank_ ? patience_of_higher_rank : 1));
  const bool is_over = !is_alive || Clock::now() - other.ended > patience;
  switch (other.fate) {
    case Fate::alive:
      return std::nullopt;
    case Fate::left:
    case Fate::gone:
      return Sign{rank, Liveness::dead, loss_text(rank)};
    case Fate::silent:
    case Fate::excluded:
      return Sign{rank, Liveness::silent, loss_text(rank)};
    case Fate::lost:
      return is_over ? std::optional(Sign{rank, Liveness::silent, loss_text(rank)}) : std::nullopt;
    case Fate::apart:
      return is_over || other.is_excluded
                 ? std::optional(Sign{rank, Liveness::excluded_us, "has taken others for dead"})
                 : std::nullopt;
  }
  return std::nullopt;
}

void Engine::exclude(const Sign& lost) {
  const std::lock_guard lock(mutex_);
  Peer& other = peer(lost.rank);
  const bool may_wait_for_this = other.fate == Fate::alive || other.fate == Fate::lost || other.fate == Fate::silent;
  if (lost.liveness != Liveness::dead && may_wait_for_this) {
    other.is_excluded = true;
    other.word = std::make_unique<Word>(
        Word{.probe = {numeric_address(other.address), greeting_to(lost.rank, Greeting::Purpose::exclude)},
             .ends = last_chance_of(lost.rank, Clock::now()),
             .needs_answer = other.fate != Fate::alive});
  }
  const Fate fate = lost.liveness == Liveness::dead ? Fate::gone : Fate::excluded;
  end_peer(lost.rank, fate, reason_in(lost.why));
  if (other.fate == Fate::lost || other.fate == Fate::silent) {
    other.fate = fate;
  }
  other.probe.reset();
  wake_waiters();
}

bool Engine::has_told_excluded() {
  const std::lock_guard lock(mutex_);
  bool all = true;
  for (Peer& other : peers_) {
    if (other.word != nullptr && has_told(other)) {
      other.word.reset();
    }
    all = all && other.word == nullptr;
  }
  if (all) {
    accept_and_greet_all();
  }
  return all;
}

// Reports whether `other` has been told that it is excluded. If its connection had ended before, its own notice to this
// rank may be lost. Then `other` answers as soon as it reads this rank's notice.
bool Engine::has_told(Peer& other) const {
  Word& word = *other.word;
  switch (word.probe.look()) {
    case Probe::Answer::refused:
      other.fate = other.fate == Fate::apart ? Fate::apart : Fate::gone;
      return true;
    case Probe::Answer::excluded:
      other.fate = Fate::apart;
      return true;
    case Probe::Answer::unreachable:
    case Probe::Answer::closed:
      return true;
    case Probe::Answer::none:
      break;
  }
  const auto now = Clock::now();
  if (!word.has_arrived && word.probe.has_arrived()) {
    word.has_arrived = true;
    const std::chrono::duration<double> patience(word.needs_answer ? std::min(options_.timeout, for_ever) : 0);
    word.ends = now + std::chrono::duration_cast<Clock::duration>(patience);
  }
  return now >= word.ends;
}

}  // namespace gradientflow::transport::tcp

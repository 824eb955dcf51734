// State of the ranks that an engine has lost.
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
  switch (other.state) {
    case PeerState::alive:
    case PeerState::left:
      return "has ended";
    case PeerState::excluded_us:
      return "has taken this rank for dead, and goes on without it";
    case PeerState::excluded:
      return std::string(taken) + other.how;
    case PeerState::dead:
    case PeerState::lost:
    case PeerState::silent:
      break;
  }
  return std::string(died) + other.how;
}

std::optional<std::string> Engine::death_of(int rank) {
  const std::lock_guard lock(mutex_);
  const PeerState state = peer(rank).state;
  return state == PeerState::alive || state == PeerState::left ? std::nullopt : std::optional(loss_text(rank));
}

Greeting Engine::greeting_to(int rank, Greeting::Purpose purpose) const {
  Greeting greeting;
  greeting.purpose = purpose;
  greeting.from = static_cast<std::uint32_t>(rank_);
  greeting.to = static_cast<std::uint32_t>(rank);
  greeting.token = token_;
  return greeting;
}

// Finds out if a rank still lives, after its connection has ended and it has sent nothing since.
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
      other.state = PeerState::dead;
      break;
    case Probe::Answer::unreachable:
      other.state = PeerState::silent;
      break;
    case Probe::Answer::excluded:
      other.state = PeerState::excluded_us;
      break;
  }
  other.probe.reset();
}

std::optional<Sign> Engine::sign_of(int rank, bool is_alive) {
  const std::lock_guard lock(mutex_);
  Peer& other = peer(rank);
  if (!is_alive) {
    make_progress(rank);  // the last message of that rank may say that it has excluded this rank
    if (other.state == PeerState::alive || other.state == PeerState::lost || other.state == PeerState::silent) {
      end_peer(rank, PeerState::dead, "its process has ended");
      other.state = PeerState::dead;
      wake_waiters();
    }
  } else if (other.state == PeerState::lost) {
    probe_lost_rank(rank);
  }
  const std::chrono::duration<double> patience(options_.host_timeout * (rank < rank_ ? patience_of_higher_rank : 1));
  const bool is_over = !is_alive || Clock::now() - other.ended > patience;
  switch (other.state) {
    case PeerState::alive:
      return std::nullopt;
    case PeerState::left:
    case PeerState::dead:
      return Sign{rank, Liveness::dead, loss_text(rank)};
    case PeerState::silent:
    case PeerState::excluded:
      return Sign{rank, Liveness::silent, loss_text(rank)};
    case PeerState::lost:
      return is_over ? std::optional(Sign{rank, Liveness::silent, loss_text(rank)}) : std::nullopt;
    case PeerState::excluded_us:
      return is_over || other.is_excluded
                 ? std::optional(Sign{rank, Liveness::excluded_us, "has taken others for dead"})
                 : std::nullopt;
  }
  return std::nullopt;
}

void Engine::exclude(const Sign& lost) {
  const std::lock_guard lock(mutex_);
  Peer& other = peer(lost.rank);
  const bool may_wait_for_this =
      other.state == PeerState::alive || other.state == PeerState::lost || other.state == PeerState::silent;
  if (lost.liveness != Liveness::dead && may_wait_for_this) {
    other.is_excluded = true;
    other.notice = std::make_unique<ExclusionNotice>(
        ExclusionNotice{.probe = {numeric_address(other.address), greeting_to(lost.rank, Greeting::Purpose::exclude)},
                        .ends = last_chance_of(lost.rank, Clock::now()),
                        .needs_answer = other.state != PeerState::alive});
  }
  const PeerState state = lost.liveness == Liveness::dead ? PeerState::dead : PeerState::excluded;
  end_peer(lost.rank, state, reason_in(lost.why));
  if (other.state == PeerState::lost || other.state == PeerState::silent) {
    other.state = state;
  }
  other.probe.reset();
  wake_waiters();
}

bool Engine::has_told_excluded() {
  const std::lock_guard lock(mutex_);
  bool all = true;
  for (Peer& other : peers_) {
    if (other.notice != nullptr && has_told(other)) {
      other.notice.reset();
    }
    all = all && other.notice == nullptr;
  }
  if (all) {
    accept_and_greet_all();
  }
  return all;
}

// Reports whether `other` has been told that it is excluded. If its connection had ended before, its own notice to this
// rank may be lost. Then `other` answers as soon as it reads this rank's notice.
bool Engine::has_told(Peer& other) const {
  ExclusionNotice& notice = *other.notice;
  switch (notice.probe.look()) {
    case Probe::Answer::refused:
      other.state = other.state == PeerState::excluded_us ? PeerState::excluded_us : PeerState::dead;
      return true;
    case Probe::Answer::excluded:
      other.state = PeerState::excluded_us;
      return true;
    case Probe::Answer::unreachable:
    case Probe::Answer::closed:
      return true;
    case Probe::Answer::none:
      break;
  }
  const auto now = Clock::now();
  if (!notice.has_arrived && notice.probe.has_arrived()) {
    notice.has_arrived = true;
    const std::chrono::duration<double> patience(notice.needs_answer ? std::min(options_.timeout, for_ever) : 0);
    notice.ends = now + std::chrono::duration_cast<Clock::duration>(patience);
  }
  return now >= notice.ends;
}

}  // namespace gradientflow::transport::tcp

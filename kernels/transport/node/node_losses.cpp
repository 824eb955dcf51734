// Failures that end a wait for ranks of a node: ranks that have died, left or given up, and timeouts.
#include <cerrno>
#include <cstring>

#include "../../base/error.hpp"
#include "../../base/text.hpp"
#include "node.hpp"

namespace gradientflow::transport {

// Throws if a rank of the node is lost before it has done its part of the event; afterwards it is no loss. In shared
// work, a rank has done its part once it takes its step, when all of the work is done.
void Node::check_peers(Event event, std::uint32_t target) const {
  const Event part = event == Event::tasks ? Event::step : event;
  const std::uint32_t part_done = event == Event::tasks ? step_ + 1 : target;
  for (int local = 0; local < size_; ++local) {
    if (local == rank_ || arrived(local, part, part_done)) {
      continue;
    }
    const Process& process = processes_[static_cast<std::size_t>(local)];
    const RankState state = flags(local).state.load(std::memory_order_acquire);
    const bool alive = process.alive();
    if ((alive && state == RankState::open) || arrived(local, part, part_done)) {
      continue;
    }
    throw state == RankState::open ? death_of(local, signature_)
    : state == RankState::closed   ? loss_of(local, closing_of(signature_), signature_)
                                   : failure_of(local, signature_);
  }
}

void Node::check_not_interrupted() const {
  if (interrupted_.load()) {
    throw Error(ErrorKind::closed, "the communicator was closed during " + describe(signature_));
  }
}

void Node::check_no_rank_failed() const {
  for (int local = 0; local < size_; ++local) {
    if (flags(local).state.load(std::memory_order_acquire) == RankState::failed) {
      throw failure_of(local, signature_);
    }
  }
}

// A closed rank finishes the calls that it has begun, so it is no loss. Prefers a failed rank with an error of its own
// to a failed rank that lost a peer.
std::optional<Error> Node::find_loss(const Signature& during) const {
  std::optional<Error> loss;
  for (int local = 0; local < size_; ++local) {
    if (local == rank_) {
      continue;
    }
    if (flags(local).state.load(std::memory_order_acquire) == RankState::failed) {
      if (flags(local).reason_kind != ErrorKind::peer) {
        return failure_of(local, during);
      }
      loss = failure_of(local, during);
    } else if (!processes_[static_cast<std::size_t>(local)].alive()) {
      return death_of(local, during);
    }
  }
  return loss;
}

// With several nodes, a rank may have waited in vain for ranks of other nodes: then its timeout is a timeout for all
// ranks of this node.
Error Node::failure_of(int local, const Signature& during) const {
  const Flags& theirs = flags(local);
  const Error lost = loss_of(local, "has given up after an error", during);
  return {waits_outside_ && theirs.reason_kind == ErrorKind::timeout ? ErrorKind::timeout : ErrorKind::peer,
          std::string(lost.what()) + ": " + theirs.reason.data()};
}

std::uint64_t Node::pulse_of_all() const noexcept {
  std::uint64_t sum = 0;
  for (int local = 0; local < size_; ++local) {
    sum += flags(local).pulse.load(std::memory_order_relaxed);
  }
  return sum;
}

Error Node::loss_of(int local, const char* how, const Signature& during) const {
  return {ErrorKind::peer, "rank " + std::to_string(world_rank(local)) + " " + how + " while rank " +
                               std::to_string(world_rank(rank_)) + " waited for it in " + describe(during)};
}

Error Node::death_of(int local, const Signature& during) const {
  const std::string pid = std::to_string(processes_[static_cast<std::size_t>(local)].pid());
  return loss_of(local, ("(process " + pid + ") has died").c_str(), during);
}

void Node::read(int local, void* destination, const void* address, std::size_t bytes) const {
  const Process& process = processes_[static_cast<std::size_t>(local)];
  try {
    process.read(destination, address, bytes);
  } catch (const Error& error) {
    if (error.code() == ESRCH || !process.alive()) {
      throw death_of(local, signature_);
    }
    throw;
  }
}

void Node::fail(const Error& reason) noexcept {
  const std::lock_guard lock(release_mutex_);
  if (gives_up_.exchange(true) || is_released_) {
    return;
  }
  Flags& mine = flags(rank_);
  if (mine.state.load(std::memory_order_relaxed) == RankState::open) {
    mine.reason_kind = reason.kind();
    std::strncpy(mine.reason.data(), reason.what(), mine.reason.size() - 1);
  }
  leave(RankState::failed);
}

bool Node::is_alive(int local) const {
  const std::lock_guard lock(release_mutex_);
  return processes_[static_cast<std::size_t>(local)].alive();
}

bool Node::has_closed(int local) const {
  const std::lock_guard lock(release_mutex_);
  return is_released_ ? has_closed_[static_cast<std::size_t>(local)] != 0
                      : flags(local).state.load(std::memory_order_acquire) == RankState::closed;
}

void Node::release() noexcept {
  const std::lock_guard lock(release_mutex_);
  if (is_released_) {
    return;
  }
  for (int local = 0; local < size_; ++local) {
    const bool has_closed = flags(local).state.load(std::memory_order_acquire) == RankState::closed;
    has_closed_[static_cast<std::size_t>(local)] = has_closed ? 1 : 0;
  }
  is_released_ = true;
  control_ = MemoryMap();
  for (Process& each : processes_) {
    each.release();
  }
}

void Node::leave(RankState state) noexcept {
  if (is_released_) {
    return;
  }
  RankState open = RankState::open;
  flags(rank_).state.compare_exchange_strong(open, state, std::memory_order_acq_rel);
}

void Node::raise_timeout(Event event, std::uint32_t target) const {
  std::vector<int> missing;
  for (int local = 0; local < size_; ++local) {
    if (!arrived(local, event, target)) {
      missing.push_back(world_rank(local));
    }
  }
  throw Error(ErrorKind::timeout, describe(signature_) + " timed out after " + format_number(timeout_) +
                                      " s (GRADIENTFLOW_TIMEOUT) on rank " + std::to_string(world_rank(rank_)) +
                                      ": no sign of " + name_ranks(missing));
}

}  // namespace gradientflow::transport

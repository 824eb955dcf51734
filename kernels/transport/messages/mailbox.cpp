#include "mailbox.hpp"

#include <new>
#include <thread>
#include <utility>

#include "../../base/forks.hpp"
#include "../../base/waits.hpp"
#include "mailbox_alarm.hpp"

namespace gradientflow::transport {
namespace {

using namespace std::chrono_literals;

}  // namespace

Mailbox::Arrival::~Arrival() {
  if (const std::shared_ptr<Mailbox> mailbox = mailbox_.lock(); message_ && mailbox != nullptr) {
    try {
      mailbox->drop(*this);
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): in a forked process
    }
  }
}

std::shared_ptr<Mailbox> Mailbox::make(std::unique_ptr<Endpoint> endpoint, std::string name,
                                       std::function<bool(int)> is_alive) {
  if (const Limits limits = endpoint->limits(); !limits.threads) {
    throw Error(ErrorKind::value, name + " needs an MPI that several threads may call" + limits.thread_advice);
  }
  std::shared_ptr<Mailbox> made(new Mailbox(std::move(endpoint), std::move(name), std::move(is_alive)));
  made->self_ = made;
  return made;
}

Mailbox::Mailbox(std::unique_ptr<Endpoint> endpoint, std::string name, std::function<bool(int)> is_alive)
    : endpoint_(std::move(endpoint)),
      limits_(endpoint_->limits()),
      name_(std::move(name)),
      is_alive_(std::move(is_alive)),
      forks_(count_forks()),
      notice_tag_(limits_.tags - 1),
      alarm_(std::make_shared<Alarm>()),
      tags_left_(notice_tag_),
      parts_under_way_(static_cast<std::size_t>(endpoint_->size())),
      peers_(static_cast<std::size_t>(endpoint_->size())),
      known_peers_(peers_.size()) {}

// In a forked process the endpoint must not be used, and the mailbox's thread does not exist.
Mailbox::~Mailbox() {
  if (is_forked()) {
    static_cast<void>(new (std::nothrow) std::shared_ptr(endpoint_));  // NOLINT(*-owning-memory): for good
    return;
  }
  close(false);
  std::vector<int> awaited;
  for (int r = 0; r < size(); ++r) {
    if (r != rank() && peers_[static_cast<std::size_t>(r)].state == PeerStatus::open) {
      awaited.push_back(r);
    }
  }
  for (Incoming& each : incoming_) {
    each.request.give_up(std::move(each.notice));
  }
  // Some messages may be lost: drawn messages that were not received stay with the endpoint, and among many ranks, not
  // all send notices.
  endpoint_->close(std::move(awaited), notice_tag_, !arrived_.empty() || taken_ > 0 || size() > few_ranks);
}

bool Mailbox::is_forked() const noexcept { return forks_ != count_forks(); }

void Mailbox::check_process() const {
  if (is_forked()) {
    throw Error(ErrorKind::closed, name_ + " belongs to the process that this one was forked from");
  }
}

// Locks the mailbox. In a forked process the lock may be held by a thread that does not exist there.
std::unique_lock<std::mutex> Mailbox::lock() const {
  check_process();
  return std::unique_lock(mutex_);
}

void Mailbox::check_usable() const {
  if (closed_) {
    throw Error(ErrorKind::closed, name_ + " has been closed");
  }
  endpoint_->check_not_ended();
}

void Mailbox::check_rank(int rank, bool may_be_any) const {
  if ((rank < 0 || rank >= size()) && (!may_be_any || rank != any_source)) {
    throw Error(ErrorKind::value, "rank " + std::to_string(rank) + " does not exist: the ranks of " + name_ +
                                      " are 0 to " + std::to_string(size() - 1));
  }
}

Tags Mailbox::draw(std::int64_t count) {
  const auto held = lock();
  if (count < 1 || count > tags_left_) {
    throw Error(ErrorKind::value, std::to_string(count) + " tags cannot be drawn: there are " +
                                      std::to_string(tags_left_) + " left of " + std::to_string(notice_tag_));
  }
  tags_left_ -= static_cast<int>(count);
  return {tags_left_, static_cast<int>(count)};
}

Tags Mailbox::draw_rest() {
  const auto held = lock();
  return {0, std::exchange(tags_left_, 0)};
}

// Releases the memory of ended transfers and has their callbacks run, while no lock is held.
void Mailbox::finish(std::unique_lock<std::mutex>& lock) {
  std::vector<Owner> owners;
  owners.reserve(ended_.size());
  for (const auto& transfer : std::exchange(ended_, {})) {
    owners.push_back(std::move(transfer->owner_));
  }
  const bool has_callbacks = !callbacks_.empty();
  lock.unlock();
  if (has_callbacks) {
    alarm_->ring();
  }
}

void Mailbox::close(bool orderly, const std::optional<Error>& reason) noexcept {
  if (is_forked()) {
    return;
  }
  try {
    std::unique_lock lock(mutex_);
    if (std::exchange(closed_, true)) {
      lock.unlock();
      while (!has_left_) {
        std::this_thread::sleep_for(1ms);
      }
      return;
    }
    const std::string why = name_ + " has been closed";
    for (const auto& transfer : std::exchange(posted_, {})) {
      end(transfer, given_up(*transfer, why));
    }
    const auto deadline = Clock::now() + waits::leave.time();
    while (progress(false), orderly && !in_flight_.empty() && Clock::now() < deadline) {
      lock.unlock();
      std::this_thread::sleep_for(1ms);
      lock.lock();
    }
    for (const auto& transfer : std::exchange(leaving_, {})) {
      end(transfer, given_up(*transfer, why));
    }
    for (const auto& transfer : std::exchange(in_flight_, {})) {
      transfer->request_.give_up(std::move(transfer->owner_));
      end(transfer, given_up(*transfer, why));
    }
    if (!endpoint_->has_ended()) {
      tell(orderly ? PeerStatus::closed : PeerStatus::failed, reason);
    }
    has_left_ = true;
    const auto callbacks = std::exchange(callbacks_, {});
    finish(lock);
    alarm_->ring();
    for (const auto& callback : callbacks) {
      callback();
    }
  } catch (const std::exception&) {  // no memory to tell other ranks with
    has_left_ = true;
  }
}

}  // namespace gradientflow::transport

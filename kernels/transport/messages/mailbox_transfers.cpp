// The sends and receives of a mailbox, whole and in parts.
#include <algorithm>
#include <utility>

#include "../../base/thread.hpp"
#include "mailbox.hpp"
#include "mailbox_alarm.hpp"

namespace gradientflow::transport {
namespace {

constexpr std::size_t largest_unasked = std::size_t{64} << 10;  // larger messages wait for the receiver's memory
constexpr std::size_t most_parts_under_way = 16;                // enough to fill a link where messages wait for others

}  // namespace

// Returns the number of parts in which `bytes` bytes travel; 0: they travel whole.
std::size_t Mailbox::parts_of(std::size_t bytes, Route route) const {
  const std::size_t part = limits_.part_bytes;
  return route == Route::whole || part == 0 ? 0 : std::max<std::size_t>((bytes + part - 1) / part, 1);
}

std::shared_ptr<Transfer> Mailbox::make_transfer(Request::Kind kind, int peer, std::int64_t tag, std::size_t bytes,
                                                 Owner owner) {
  check_usable();
  check_rank(peer, kind == Request::Kind::receive);
  if (!has_thread_) {  // started before the endpoint has the memory
    start_thread("the thread of a mailbox", [mailbox = self_, alarm = alarm_] {
      take_short_turns();
      thread_main(mailbox, alarm);
    }).detach();
    has_thread_ = true;
  }
  auto transfer = std::make_shared<Transfer>();
  transfer->kind_ = kind;
  transfer->peer_ = peer;
  transfer->tag_ = Tags{0, notice_tag_}.at(tag);
  transfer->bytes_ = bytes;
  transfer->owner_ = std::move(owner);
  return transfer;
}

std::shared_ptr<Transfer> Mailbox::send(int to, std::int64_t tag, const void* data, std::size_t bytes, Owner owner,
                                        Route route) {
  auto held = lock();
  auto transfer = make_transfer(Request::Kind::send, to, tag, bytes, std::move(owner));
  known_peers_[static_cast<std::size_t>(to)] = true;
  if (const auto error = loss(to, transfer->what())) {
    end(transfer, error);
  } else if (transfer->parts_ = parts_of(bytes, route); transfer->parts_ > 0) {
    transfer->data_ = const_cast<void*>(data);  // NOLINT(*-const-cast): only read
    leaving_.push_back(transfer);
    send_parts();
  } else {
    const bool is_announced = limits_.part_bytes == 0 && bytes > largest_unasked;
    transfer->request_ = endpoint_->send(to, transfer->tag_, data, bytes, is_announced);
    start(transfer);
  }
  finish(held);
  return transfer;
}

// Makes the next part that has not begun.
std::shared_ptr<Transfer> Mailbox::next_part(const std::shared_ptr<Transfer>& whole) const {
  auto part = std::make_shared<Transfer>();
  const std::size_t begin = whole->parts_begun_++ * limits_.part_bytes;
  part->kind_ = whole->kind_;
  part->peer_ = whole->peer_;
  part->tag_ = whole->tag_;
  part->data_ = static_cast<std::byte*>(whole->data_) + begin;
  part->bytes_ = std::min(limits_.part_bytes, whole->bytes_ - begin);
  part->owner_ = whole->owner_;
  part->whole_ = whole;
  return part;
}

// Begins as many parts as may be under way. Their sends end when the receiver has taken them, which limits the data
// that waits there.
void Mailbox::send_parts() {
  for (const std::shared_ptr<Transfer>& whole : leaving_) {
    std::size_t& under_way = parts_under_way_[static_cast<std::size_t>(whole->peer_)];
    while (!whole->ended() && whole->parts_begun_ < whole->parts_ && under_way < most_parts_under_way) {
      if (const auto error = loss(whole->peer_, whole->what())) {
        end(whole, error);
        break;
      }
      const std::shared_ptr<Transfer> part = next_part(whole);
      part->request_ = endpoint_->send(part->peer_, part->tag_, part->data_, part->bytes_, true);
      ++under_way;
      in_flight_.push_back(part);
      alarm_->ring_if_idle();
    }
  }
  std::erase_if(leaving_, [](const auto& each) { return each->ended() || each->parts_begun_ == each->parts_; });
}

std::shared_ptr<Transfer> Mailbox::receive(int from, std::int64_t tag, void* data, std::size_t bytes, Owner owner,
                                           Route route) {
  auto held = lock();
  auto transfer = make_transfer(Request::Kind::receive, from, tag, bytes, std::move(owner));
  transfer->data_ = data;
  transfer->parts_ = parts_of(bytes, route);
  if (from >= 0) {
    known_peers_[static_cast<std::size_t>(from)] = true;
  }
  progress(false);
  posted_.push_back(transfer);
  for (auto at = arrived_.begin(); at != arrived_.end() && !posted_.empty() && posted_.back() == transfer;) {
    if (at->envelope().tag == transfer->tag_ && at->envelope().is_from(from)) {
      transport::Arrival message = std::move(*at);
      at = arrived_.erase(at);
      begin_receive(transfer, message);
    } else {
      ++at;
    }
  }
  if (!posted_.empty() && posted_.back() == transfer) {
    if (const auto error = loss(from, transfer->what())) {
      posted_.pop_back();
      end(transfer, error);
    } else {
      alarm_->ring_if_idle();
    }
  }
  finish(held);
  return transfer;
}

// Receives the message of a transfer in posted_, or of its next part. The transfer is posted until all parts have
// begun.
void Mailbox::begin_receive(const std::shared_ptr<Transfer>& transfer, transport::Arrival& message) {
  const std::shared_ptr<Transfer> part = transfer->parts_ == 0 ? transfer : next_part(transfer);
  if (transfer->parts_begun_ == transfer->parts_) {
    std::erase(posted_, transfer);
  }
  begin(part, message);
}

std::shared_ptr<Transfer> Mailbox::receive(Arrival& arrival, void* data, Owner owner) {
  auto held = lock();
  if (arrival.mailbox_.lock().get() != this) {
    throw Error(ErrorKind::value, "the message has come to another mailbox than " + name_);
  }
  const Envelope& envelope = arrival.envelope_;
  auto transfer =
      make_transfer(Request::Kind::receive, envelope.source, envelope.tag, envelope.bytes, std::move(owner));
  transfer->data_ = data;
  if (!arrival.message_) {
    throw Error(ErrorKind::value, "the message has been received already");
  }
  --taken_;
  begin(transfer, *arrival.message_);
  arrival.message_.reset();
  finish(held);
  return transfer;
}

// The thread need not look after a transfer that ends at once.
void Mailbox::start(const std::shared_ptr<Transfer>& transfer) {
  if (!test(transfer)) {
    in_flight_.push_back(transfer);
    alarm_->ring_if_idle();
  }
}

// Begins a receive. A message of another size is dropped.
void Mailbox::begin(const std::shared_ptr<Transfer>& transfer, transport::Arrival& message) {
  const Envelope& envelope = transfer->envelope_ = message.envelope();
  if (envelope.bytes != transfer->bytes_) {
    end(transfer,
        Error(ErrorKind::mismatch, transfer->what() + " of " + std::to_string(transfer->bytes_) + " bytes on rank " +
                                       std::to_string(rank()) + " met a message of " + std::to_string(envelope.bytes) +
                                       " from rank " + std::to_string(envelope.source)));
    return;
  }
  try {
    transfer->request_ = endpoint_->receive(message, transfer->data_);
    start(transfer);
  } catch (const Error& error) {
    end(transfer, error);
  }
}

void Mailbox::end(const std::shared_ptr<Transfer>& transfer, std::optional<Error> error) {
  transfer->error_ = std::move(error);
  transfer->ended_.store(true, std::memory_order_release);
  if (transfer->then_) {
    callbacks_.push_back(std::exchange(transfer->then_, nullptr));
  }
  ended_.push_back(transfer);
  if (transfer->whole_ != nullptr) {
    end_part(*transfer);
  }
}

// The whole ends with its last part, or with the first failure.
void Mailbox::end_part(const Transfer& part) {
  const std::shared_ptr<Transfer>& whole = part.whole_;
  if (part.kind_ == Request::Kind::send) {
    --parts_under_way_[static_cast<std::size_t>(part.peer_)];
  }
  ++whole->parts_ended_;
  if (!whole->ended() && (part.error_ || whole->parts_ended_ == whole->parts_)) {
    std::erase(posted_, whole);
    end(whole, part.error_);
  }
}

// Returns true if the transfer need not be tested any more.
bool Mailbox::test(const std::shared_ptr<Transfer>& transfer) {
  if (!closed_ && !endpoint_->may_have_ended(transfer->request_)) {  // a closed mailbox does not draw messages any more
    return false;
  }
  try {
    if (!endpoint_->test(transfer->request_)) {
      return false;
    }
    end(transfer);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::peer) {
      transfer->error_ = error;
      lost_with_.push_back(transfer);
    } else {
      end(transfer, Error(error.kind(), std::string(error.what()) + ", in " + transfer->what(), error.code()));
    }
  }
  return true;
}

// Ends transfers whose ranks were lost. The best explanation is the rank's own notice, known once its messages have
// been drawn.
void Mailbox::end_lost() {
  for (const auto& transfer : std::exchange(lost_with_, {})) {
    const int peer = transfer->kind_ == Request::Kind::send ? transfer->peer_ : transfer->envelope_.source;
    if (const auto known = loss(peer, transfer->what())) {
      end(transfer, known);
    } else if (transfer->error_) {
      end(transfer, Error(ErrorKind::peer, std::string(transfer->error_->what()) + ", while rank " +
                                               std::to_string(rank()) + " waited in " + transfer->what()));
    }
  }
}

// Parts sent to one rank end in their order, and each test looks for messages: so only the first part is tested.
void Mailbox::test_all() {
  std::vector<bool> waits(peers_.size());
  std::erase_if(in_flight_, [&](const auto& transfer) {
    const bool is_sent_part = transfer->whole_ != nullptr && transfer->kind_ == Request::Kind::send;
    const auto peer = static_cast<std::size_t>(std::max(transfer->peer_, 0));
    if (is_sent_part && waits[peer]) {
      return false;
    }
    const bool ended = test(transfer);
    waits[peer] = waits[peer] || (is_sent_part && !ended);
    return ended;
  });
}

void Mailbox::end_all(const Error& error) {
  for (auto* const transfers : {&posted_, &leaving_, &in_flight_, &lost_with_}) {
    for (const auto& transfer : std::exchange(*transfers, {})) {
      if (transfer->request_.under_way()) {
        transfer->request_.give_up(std::move(transfer->owner_));
      }
      end(transfer, error);
    }
  }
}

Error Mailbox::given_up(const Transfer& transfer, const std::string& why) {
  return {ErrorKind::closed, transfer.what() + " was given up: " + why};
}

bool Mailbox::cancel(const std::shared_ptr<Transfer>& transfer) {
  auto held = lock();
  const bool is_posted = std::erase(posted_, transfer) > 0;
  if (is_posted) {
    end(transfer, given_up(*transfer, "it has been canceled"));
  }
  finish(held);
  return is_posted;
}

void Mailbox::when_ended(const std::shared_ptr<Transfer>& transfer, std::function<void()> then) {
  auto held = lock();
  if (transfer->ended()) {
    if (!closed_) {
      callbacks_.push_back(std::move(then));
      finish(held);
      return;
    }
    held.unlock();
    then();
    return;
  }
  transfer->then_ = std::move(then);
}

}  // namespace gradientflow::transport

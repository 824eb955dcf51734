// Messages that a mailbox draws from its endpoint, and messages that wait to be asked for.
#include <algorithm>

#include "mailbox.hpp"

namespace gradientflow::transport {
namespace {

constexpr int drawn_at_once = 256;

}  // namespace

std::unique_ptr<Mailbox::Arrival> Mailbox::find_arrival(int from, const Tags& tags) {
  check_usable();
  const auto found = std::find_if(arrived_.begin(), arrived_.end(), [&](const auto& each) {
    return tags.has(each.envelope().tag) && each.envelope().is_from(from);
  });
  if (found == arrived_.end()) {
    return nullptr;
  }
  auto arrival = std::make_unique<Arrival>(std::move(*found), endpoint_, self_);
  arrived_.erase(found);
  ++taken_;
  return arrival;
}

std::unique_ptr<Mailbox::Arrival> Mailbox::take(int from, const Tags& tags) {
  check_rank(from, true);
  const auto held = lock();
  return find_arrival(from, tags);
}

bool Mailbox::has(const Tags& tags) const {
  const auto held = lock();
  return std::any_of(arrived_.begin(), arrived_.end(), [&](const auto& each) { return tags.has(each.envelope().tag); });
}

void Mailbox::drop(Arrival& arrival) {
  const auto held = lock();
  arrival.message_.reset();
  --taken_;
}

void Mailbox::deliver(transport::Arrival message) {
  const Envelope& envelope = message.envelope();
  known_peers_[static_cast<std::size_t>(envelope.source)] = true;
  if (envelope.tag == notice_tag_) {
    begin_notice(message);
    return;
  }
  const auto found = std::find_if(posted_.begin(), posted_.end(), [&](const auto& transfer) {
    return transfer->tag_ == envelope.tag && envelope.is_from(transfer->peer_);
  });
  if (found != posted_.end()) {
    begin_receive(std::shared_ptr<Transfer>(*found), message);  // may take it out of the list
    return;
  }
  arrived_.push_back(std::move(message));
}

bool Mailbox::draw_messages() {
  int drawn = 0;
  while (drawn < drawn_at_once) {
    std::optional<transport::Arrival> message = endpoint_->next();
    if (!message) {
      break;
    }
    deliver(std::move(*message));
    ++drawn;
  }
  read_notices();
  return drawn > 0;
}

}  // namespace gradientflow::transport

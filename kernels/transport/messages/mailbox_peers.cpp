// State of other ranks, known to a mailbox: closed, given up or died; and its effect on transfers.
#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "../../base/waits.hpp"
#include "mailbox.hpp"

namespace gradientflow::transport {
namespace {

constexpr std::size_t longest_reason = 3000;  // bytes; MPI sends this much at once

}  // namespace

int Mailbox::losses() const {
  const auto held = lock();
  return lost_;
}

std::optional<Error> Mailbox::loss_of(int rank, const std::string& what) const {
  const auto held = lock();
  return loss(rank, what);
}

bool Mailbox::has_closed(int rank) const {
  const auto held = lock();
  return peers_[static_cast<std::size_t>(rank)].state == PeerStatus::closed;
}

void Mailbox::begin_notice(transport::Arrival& message) {
  auto notice = std::make_shared<std::string>(message.envelope().bytes, '\0');
  Request request = endpoint_->receive(message, notice->data());
  incoming_.push_back({std::move(notice), std::move(request)});
}

void Mailbox::read_notices() {
  incoming_.remove_if([this](Incoming& each) {
    const int source = each.request.peer();
    try {
      if (!endpoint_->test(each.request)) {
        return false;
      }
      read_notice(source, *each.notice);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::peer) {
        throw;
      }
    }
    return true;
  });
}

void Mailbox::read_notice(int source, const std::string& bytes) {
  Notice notice;
  std::memcpy(&notice, bytes.data(), std::min(sizeof notice, bytes.size()));
  std::optional<Error> reason;
  if (bytes.size() > sizeof notice) {
    reason.emplace(notice.kind, bytes.substr(sizeof notice));
  }
  note(source, notice.state, std::move(reason));
}

void Mailbox::note(int rank, PeerStatus state, std::optional<Error> reason, std::string how) {
  PeerState& known = peers_[static_cast<std::size_t>(rank)];
  if (known.state != PeerStatus::open || rank == this->rank()) {
    return;
  }
  known = {state, Clock::now(), std::move(reason), std::move(how)};
  ++lost_;
  end_unreceivable();
}

// Ends receives whose message cannot come any more: all messages of a rank were drawn before its notice, or before it
// was found dead.
void Mailbox::end_unreceivable() {
  std::erase_if(posted_, [this](const auto& transfer) {
    auto error = loss(transfer->peer_, transfer->what());
    if (!error) {
      return false;
    }
    end(transfer, std::move(error));
    return true;
  });
}

// Returns why rank `peer` (for any_source: every other rank) cannot take part any more.
std::optional<Error> Mailbox::loss(int peer, const std::string& what) const {
  if (lost_ == 0 || (peer == any_source && lost_ < size() - 1)) {
    return std::nullopt;
  }
  const auto ending = [&] { return " while rank " + std::to_string(rank()) + " waited in " + what; };
  if (peer == any_source) {
    return Error(ErrorKind::peer, "all other ranks have closed " + name_ + ", given up or died" + ending());
  }
  const PeerState& known = peers_[static_cast<std::size_t>(peer)];
  switch (known.state) {
    case PeerStatus::open:
      return std::nullopt;
    case PeerStatus::closed:
      return Error(ErrorKind::peer, rank_text(peer) + " has closed " + name_ + ending());
    case PeerStatus::failed:
      if (known.reason) {
        return known.reason;
      }
      return Error(ErrorKind::peer, rank_text(peer) + " has given up" + ending());
    case PeerStatus::died:
      return Error(ErrorKind::peer, Death{peer, known.how}.text() + ending());
  }
  return std::nullopt;
}

// Notes ranks that have died, and gives up messages under way to or from ranks that left a while ago. A receive from a
// rank that has closed continues: its message may still be arriving, however long that takes.
void Mailbox::check_peers() {
  std::vector<Death> deaths = endpoint_->dead();
  std::erase_if(deaths, [this](const Death& death) {
    return peers_[static_cast<std::size_t>(death.rank)].state != PeerStatus::open;
  });
  for (int r = 0; r < size(); ++r) {
    if (peers_[static_cast<std::size_t>(r)].state == PeerStatus::open && r != rank() && !is_alive_(r)) {
      deaths.push_back({r});
    }
  }
  if (!deaths.empty()) {
    while (draw_messages() || draw_messages()) {  // gets their last messages: MPI finds them on the second attempt
    }
  }
  for (Death& death : deaths) {
    note(death.rank, PeerStatus::died, {}, std::move(death.how));
  }
  if (lost_ == 0) {
    return;
  }
  const auto now = Clock::now();
  std::erase_if(in_flight_, [&](const auto& transfer) {
    const int peer = transfer->kind_ == Request::Kind::send ? transfer->peer_ : transfer->envelope_.source;
    const PeerState& known = peers_[static_cast<std::size_t>(peer)];
    const bool may_come = known.state == PeerStatus::closed && transfer->kind_ == Request::Kind::receive;
    if (known.state == PeerStatus::open || may_come || now - known.since < waits::leave.time()) {
      return false;
    }
    transfer->request_.give_up(std::move(transfer->owner_));
    end(transfer, loss(peer, transfer->what()));
    return true;
  });
}

void Mailbox::tell(PeerStatus state, const std::optional<Error>& reason) {
  const Notice head{state, reason ? reason->kind() : ErrorKind::peer};
  auto notice = std::make_shared<std::string>(reinterpret_cast<const char*>(&head), sizeof head);
  if (reason) {
    *notice += std::string_view(reason->what()).substr(0, longest_reason);
  }
  for (int r = 0; r < size(); ++r) {
    const bool knows = size() <= few_ranks || known_peers_[static_cast<std::size_t>(r)];
    if (r == rank() || !knows || peers_[static_cast<std::size_t>(r)].state == PeerStatus::died) {
      continue;
    }
    try {
      endpoint_->send(r, notice_tag_, notice->data(), notice->size()).give_up(notice);
    } catch (const Error&) {  // the rank cannot be told
    }
  }
}

}  // namespace gradientflow::transport

#include "messages.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "../../base/text.hpp"
#include "../../base/waits.hpp"

namespace gradientflow::transport {
namespace {

// Calls shorter than this do not sleep: where cores have gone to sleep, a nap takes a tenth of a millisecond, too long
// for such calls.
constexpr std::chrono::milliseconds short_call{4};

}  // namespace

Messages::Messages(Endpoint& endpoint, Node& node, const Topology& topology, double timeout)
    : endpoint_(&endpoint),
      node_(&node),
      topology_(&topology),
      timeout_(timeout),
      peers_(static_cast<std::size_t>(endpoint.size())),
      known_peers_(peers_.size()) {}

void Messages::end() noexcept {
  const std::lock_guard lock(leave_mutex_);
  if (std::exchange(ended_, true)) {
    return;
  }
  std::vector<int> awaited;
  bool works = true;
  try {
    if (!endpoint_->has_ended()) {
      read_notices();
    }
    for (const int r : ranks_to_tell()) {
      const NoticeKind state = peers_[static_cast<std::size_t>(r)].state;
      if (state != NoticeKind::closed && state != NoticeKind::failed) {
        awaited.push_back(r);
      }
    }
  } catch (const std::exception&) {
    works = false;
  }
  for (auto& incoming : incoming_) {
    for (Incoming& each : incoming) {
      each.request.give_up(std::move(each.notice));
    }
  }
  endpoint_->close(std::move(awaited), Tag(Purpose::leave, 0).value(), !works);
}

void Messages::begin(const Signature& signature, const std::vector<int>& participants) {
  ++call_;
  signature_ = signature;
  last_wait_ = {};
  awake_ = Patience::Clock::now() + short_call;
  participants_ = &participants;
}

Request Messages::send(int to, Purpose purpose, const void* data, std::size_t bytes) const {
  known_peers_[static_cast<std::size_t>(to)] = true;
  const std::uint32_t call = purpose == Purpose::agreement || purpose == Purpose::data ? call_ : 0;
  Request message = endpoint_->send(to, Tag(purpose, call).value(), data, bytes);
  if (purpose != Purpose::user) {
    bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
    messages_sent_.fetch_add(1, std::memory_order_relaxed);
  }
  return message;
}

Request Messages::receive(int from, Purpose purpose, void* data, std::size_t bytes) const {
  known_peers_[static_cast<std::size_t>(from)] = true;
  const std::uint32_t call = purpose == Purpose::agreement || purpose == Purpose::data ? call_ : 0;
  return endpoint_->receive(from, Tag(purpose, call).value(), data, bytes);
}

// Tests a message. The best explanation of a failure is the notice of the rank itself. A message longer than expected
// means that the ranks are in different states.
template <class Describe>
std::optional<std::size_t> Messages::test(Request& message, bool collective, Describe describe) {
  const int peer = message.peer();
  try {
    return endpoint_->test(message);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::peer) {
      read_notices();
      if (const auto departure = departure_of(peer, describe(), collective, true)) {
        throw Error(*departure);
      }
    }
    throw Error(error.kind() == ErrorKind::mismatch ? ErrorKind::internal : error.kind(),
                std::string(error.what()) + ", while rank " + std::to_string(rank()) + " waited in " + describe(),
                error.code());
  }
}

// Messages that a rank sent before it left or died still arrive.
template <class Describe>
std::size_t Messages::wait(Request& message, Patience& patience, bool collective, Describe describe) {
  const int peer = message.peer();
  while (true) {
    if (const auto bytes = test(message, collective, describe)) {
      return *bytes;
    }
    if (!endpoint_->pause(patience)) {
      continue;
    }
    if (const auto loss = check_peers(peer, describe(), collective)) {
      if (const auto bytes = test(message, collective, describe)) {
        return *bytes;
      }
      throw Error(*loss);
    }
    if (patience.over()) {
      throw Error(ErrorKind::timeout,
                  describe() + " timed out after " + format_number(timeout_) + " s (GRADIENTFLOW_TIMEOUT) on rank " +
                      std::to_string(rank()) + ": no sign of " +
                      (collective ? name_ranks(missing_ranks(peer)) : "rank " + std::to_string(peer)));
    }
  }
}

std::size_t Messages::wait(Request& message) {
  if (!message.under_way()) {
    return 0;
  }
  Patience patience(timeout_, awake_, last_wait_);
  const std::size_t bytes = wait(message, patience, true, [this] { return describe(signature_); });
  last_wait_ = patience.lasted().value_or(last_wait_);
  node_->pulse();
  return bytes;
}

std::size_t Messages::wait_user_message(Request& message, const std::string& what) {
  Patience patience(timeout_);
  return wait(message, patience, false, [&what] { return what; });
}

// A failed rank ends the collective call, whichever rank is awaited. A closed or dead rank is an error only for ranks
// that wait for it. This error is returned, not thrown, because the awaited messages may have come meanwhile.
std::optional<Error> Messages::check_peers(int awaited, const std::string& what, bool collective) {
  if (endpoint_->interrupted()) {
    throw Error(ErrorKind::closed, "the communicator was closed during " + what);
  }
  if (!collective && gave_up_) {
    throw Error(ErrorKind::peer, "this rank has given up meanwhile, so it no longer waits in " + what);
  }
  read_notices();
  if (collective) {
    answer_the_roll();
  }
  for (int r = 0; r < size() && collective; ++r) {
    if (has_failed(r)) {
      throw failure_of(r, what);
    }
  }
  if (auto departure = departure_of(awaited, what, collective)) {
    return departure;
  }
  if (collective) {
    node_->check_no_rank_failed();
    node_->pulse();  // ranks of the node wait for this rank, which waits within a timeout
  }
  return find_death(awaited, what, collective);
}

void Messages::check_peers() {
  if (const auto loss = check_peers(rank(), describe(signature_), true)) {
    throw Error(*loss);
  }
}

std::optional<Error> Messages::find_death(int awaited, const std::string& what, bool collective) {
  for (const Death& death : endpoint_->dead()) {
    const bool takes_part =
        collective && std::find(participants_->begin(), participants_->end(), death.rank) != participants_->end();
    if (death.rank != awaited && !takes_part) {
      continue;
    }
    auto departure = departure_of(death.rank, what, collective, true);
    if (departure && death.rank == awaited) {
      return departure;
    }
    if (!departure) {
      return Error(ErrorKind::peer, death.text() + ", while rank " + std::to_string(rank()) + " waited in " + what);
    }
  }
  return std::nullopt;
}

bool Messages::has_failed(int rank) {
  const std::lock_guard lock(peers_mutex_);
  return peers_[static_cast<std::size_t>(rank)].state == NoticeKind::failed;
}

Error Messages::failure_of(int rank, const std::string& what) {
  const std::lock_guard lock(peers_mutex_);
  const PeerState& peer = peers_[static_cast<std::size_t>(rank)];
  return {peer.kind == ErrorKind::timeout ? ErrorKind::timeout : ErrorKind::peer,
          "rank " + std::to_string(rank) + " has given up, while rank " + std::to_string(this->rank()) + " waited in " +
              what + ": " + peer.text};
}

// Returns the reason, if known, why a rank sends no more messages. A rank of this node also tells it in the node's
// memory, ahead of its messages on their way: this counts only if no message can come any more (`is_lost`).
std::optional<Error> Messages::departure_of(int rank, const std::string& what, bool collective, bool is_lost) {
  if (has_failed(rank)) {
    return failure_of(rank, what);
  }
  const int local = node_->local_rank_of(rank);
  const bool has_closed_in_node = is_lost && local >= 0 && node_->has_closed(local);
  const std::lock_guard lock(peers_mutex_);
  if (peers_[static_cast<std::size_t>(rank)].state != NoticeKind::closed && !has_closed_in_node) {
    return std::nullopt;
  }
  const std::string how = collective ? closing_of(signature_) : "has closed its communicator";
  return Error(ErrorKind::peer, "rank " + std::to_string(rank) + " " + how + " while rank " +
                                    std::to_string(this->rank()) + " waited for it in " + what);
}

// Reads notices, in the order in which each rank has sent them.
void Messages::read_notices() {
  const std::lock_guard lock(peers_mutex_);
  for (const Purpose purpose : {Purpose::roll_call, Purpose::leave}) {
    std::list<Incoming>& incoming = incoming_.at(purpose == Purpose::leave ? 1 : 0);
    while (auto arrival = endpoint_->next(Tag(purpose, 0).value())) {
      const Envelope& envelope = arrival->envelope();
      if (envelope.bytes != sizeof(Notice)) {
        throw Error(ErrorKind::internal, "a notice of rank " + std::to_string(envelope.source) + " has " +
                                             std::to_string(envelope.bytes) + " bytes");
      }
      auto notice = std::make_shared<Notice>();
      Request request = endpoint_->receive(*arrival, notice.get());
      incoming.push_back({std::move(notice), std::move(request)});
    }
    incoming.remove_if([&](Incoming& each) {
      const int source = each.request.peer();
      try {
        if (!endpoint_->test(each.request)) {
          return false;
        }
        take(purpose, source, *each.notice);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::peer) {
          throw;
        }
      }
      return true;
    });
  }
}

void Messages::take(Purpose purpose, int source, const Notice& notice) {
  PeerState& peer = peers_[static_cast<std::size_t>(source)];
  if (purpose == Purpose::roll_call) {
    peer.present = notice.call;
    peer.asks = peer.asks || notice.state == NoticeKind::asking;
    return;
  }
  peer.state = notice.state;
  peer.kind = notice.kind;
  peer.text.assign(static_cast<const char*>(notice.text),
                   strnlen(static_cast<const char*>(notice.text), sizeof notice.text));
}

void Messages::answer_the_roll() {
  std::vector<int> asking;
  {
    const std::lock_guard lock(peers_mutex_);
    for (std::size_t r = 0; r < peers_.size(); ++r) {
      if (peers_[r].asks && peers_[r].present == call_) {
        asking.push_back(static_cast<int>(r));
      }
      peers_[r].asks = false;
    }
  }
  tell(asking, NoticeKind::here, ErrorKind::peer, "");
}

void Messages::tell(const std::vector<int>& ranks, NoticeKind state, ErrorKind kind, const char* text) {
  if (ranks.empty()) {
    return;
  }
  const bool is_leaving = state == NoticeKind::closed || state == NoticeKind::failed;
  const int tag = Tag(is_leaving ? Purpose::leave : Purpose::roll_call, 0).value();
  const auto notice = std::make_shared<Notice>();
  notice->state = state;
  notice->kind = kind;
  notice->call = call_;
  std::strncpy(static_cast<char*>(notice->text), text, sizeof notice->text - 1);
  for (const int r : ranks) {
    endpoint_->send(r, tag, notice.get(), sizeof(Notice)).give_up(notice);
  }
}

void Messages::tell_closed() noexcept { leave(NoticeKind::closed, ErrorKind::peer, ""); }

void Messages::tell_failed(const Error& error) noexcept {
  gave_up_ = true;
  leave(NoticeKind::failed, error.kind(), error.what());
}

std::vector<int> Messages::closed() {
  if (!ended_) {
    read_notices();
  }
  const std::lock_guard lock(peers_mutex_);
  std::vector<int> ranks;
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    if (peers_[r].state == NoticeKind::closed) {
      ranks.push_back(static_cast<int>(r));
    }
  }
  return ranks;
}

std::vector<int> Messages::ranks_to_tell() const {
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r) {
    const bool knows = (topology_->nodes() > 1 && size() <= few_ranks) || known_peers_[static_cast<std::size_t>(r)];
    if (knows && r != rank()) {
      ranks.push_back(r);
    }
  }
  return ranks;
}

void Messages::leave(NoticeKind state, ErrorKind kind, const char* text) noexcept {
  const std::lock_guard lock(leave_mutex_);
  if (std::exchange(told_, true)) {
    return;
  }
  try {
    if (!endpoint_->has_ended()) {
      tell(ranks_to_tell(), state, kind, text);
    }
  } catch (const Error&) {  // other ranks find out when their time is up
  } catch (const std::bad_alloc&) {
  }
}

// Calls the roll. Ranks that wait in the same call answer; ranks that do not answer in time are missing. Where no rank
// of a node answers, all of its ranks are missing.
std::vector<int> Messages::missing_ranks(int awaited) {
  std::vector<int> others;
  std::copy_if(participants_->begin(), participants_->end(), std::back_inserter(others),
               [&](int r) { return r != rank(); });
  tell(others, NoticeKind::asking, ErrorKind::peer, "");
  std::vector<int> missing;
  Patience patience(std::min(waits::roll_call.seconds(), timeout_));
  while (true) {
    node_->pulse();
    read_notices();
    answer_the_roll();
    for (int r = 0; r < size(); ++r) {
      if (has_failed(r)) {  // the failed rank knows better which ranks are missing
        throw failure_of(r, describe(signature_));
      }
    }
    {
      const std::lock_guard lock(peers_mutex_);
      missing.clear();
      std::copy_if(others.begin(), others.end(), std::back_inserter(missing),
                   [&](int r) { return peers_[static_cast<std::size_t>(r)].present != call_; });
    }
    if (missing.empty() || (endpoint_->pause(patience) && patience.over())) {
      break;
    }
  }
  std::vector<bool> present(static_cast<std::size_t>(topology_->nodes()), false);
  for (const int r : *participants_) {
    if (std::find(missing.begin(), missing.end(), r) == missing.end()) {
      present[static_cast<std::size_t>(topology_->node_of[static_cast<std::size_t>(r)])] = true;
    }
  }
  for (std::size_t node = 0; node < present.size(); ++node) {
    if (!present[node]) {
      missing.insert(missing.end(), topology_->members[node].begin(), topology_->members[node].end());
    }
  }
  if (missing.empty()) {
    missing.push_back(awaited);
  }
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  return missing;
}

}  // namespace gradientflow::transport

#include "messages.hpp"

#include <algorithm>
#include <cstring>

#include "../../base/text.hpp"
#include "../patience.hpp"
#include "../mpi/retirement.hpp"

namespace gradientflow::transport {
namespace {

// On a machine whose cores have gone to sleep a nap takes a tenth of a millisecond, which short calls would feel.
constexpr std::chrono::milliseconds short_call{4};

}  // namespace

Message& Message::operator=(Message&& other) noexcept {
  if (this != &other) {
    abandon();
    mpi_ = other.mpi_;
    request_ = other.request_;
    peer_ = other.peer_;
    kind_ = other.kind_;
    other.request_ = MPI_REQUEST_NULL;
  }
  return *this;
}

void Message::abandon() noexcept {
  if (request_ != MPI_REQUEST_NULL) {
    mpi_->give_up(request_, kind_ == Kind::receive);
  }
}

Messages::Messages(MpiCommunicator& mpi, Node& node, const Topology& topology, double timeout)
    : mpi_(&mpi),
      node_(&node),
      topology_(&topology),
      timeout_(timeout),
      peers_(static_cast<std::size_t>(mpi.size())),
      known_peers_(peers_.size()) {}

Messages::~Messages() {
  for (Sent& sent : sent_) {
    if (mpi_->finalized()) {
      static_cast<void>(sent.notice.release());  // MPI may still read it
    } else {
      finish_later(std::move(sent.notice), std::move(sent.requests));
    }
  }
  try {
    if (!mpi_->finalized()) {
      read_notices();
    }
    std::vector<int> awaited;
    for (const int r : ranks_to_tell()) {
      const State state = peers_[static_cast<std::size_t>(r)].state;
      if (state != State::closed && state != State::failed) {
        awaited.push_back(r);
      }
    }
    mpi_->await_last_messages(std::move(awaited), Tag(Purpose::leave, 0).value());
  } catch (const Error&) {  // MPI does not work any more
  } catch (const std::bad_alloc&) {
  }
}

void Messages::begin(const Signature& signature, const std::vector<int>& participants) {
  ++call_;
  signature_ = signature;
  last_wait_ = {};
  awake_ = Patience::Clock::now() + short_call;
  participants_ = &participants;
}

Message Messages::send(int to, Purpose purpose, const void* data, std::size_t bytes) const {
  known_peers_[static_cast<std::size_t>(to)] = true;
  Message message;
  message.mpi_ = mpi_;
  message.peer_ = to;
  message.kind_ = Message::Kind::send;
  const std::uint32_t call = purpose == Purpose::agreement || purpose == Purpose::data ? call_ : 0;
  mpi_->check(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, Tag(purpose, call).value(), mpi_->get(),
                        &message.request_),
              "MPI_Isend");
  if (purpose != Purpose::user) {
    bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
  }
  return message;
}

Message Messages::receive(int from, Purpose purpose, void* data, std::size_t bytes) const {
  known_peers_[static_cast<std::size_t>(from)] = true;
  Message message;
  message.mpi_ = mpi_;
  message.peer_ = from;
  message.kind_ = Message::Kind::receive;
  const std::uint32_t call = purpose == Purpose::agreement || purpose == Purpose::data ? call_ : 0;
  mpi_->check(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, Tag(purpose, call).value(), mpi_->get(),
                        &message.request_),
              "MPI_Irecv");
  return message;
}

bool Messages::done(Message& message, MPI_Status& status) const {
  int done = 0;
  const int code = MPI_Test(&message.request_, &done, &status);
  if (code != MPI_SUCCESS) {
    mpi_->check(code, "a message " + std::string(message.kind_ == Message::Kind::send ? "to" : "from") + " rank " +
                          std::to_string(message.peer_) + " in " + describe(signature_));
  }
  return done != 0;
}

std::size_t Messages::wait(Message& message) {
  if (!message.under_way()) {
    return 0;
  }
  MPI_Status status;
  Patience patience(timeout_, awake_, last_wait_);
  while (!done(message, status)) {
    if (patience.pause()) {
      check_peers(message, describe(signature_), true);
      if (patience.over()) {
        raise_timeout(message.peer_);
      }
    }
  }
  last_wait_ = patience.lasted().value_or(last_wait_);
  node_->pulse();
  int bytes = 0;
  if (message.kind_ == Message::Kind::receive) {
    MPI_Get_count(&status, MPI_BYTE, &bytes);
  }
  return static_cast<std::size_t>(bytes);
}

std::size_t Messages::wait_apart(Message& message, const std::string& what) {
  MPI_Status status;
  const auto done = [&] {
    int ended = 0;
    mpi_->check(MPI_Test(&message.request_, &ended, &status), what);
    return ended != 0;
  };
  Patience patience(timeout_);
  while (!done()) {
    if (patience.pause()) {
      check_peers(message, what, false);
      if (patience.over()) {
        throw Error(ErrorKind::timeout, what + " timed out after " + format_number(timeout_) +
                                            " s (GRADIENTFLOW_TIMEOUT) on rank " + std::to_string(rank()) +
                                            ": no sign of rank " + std::to_string(message.peer_));
      }
    }
  }
  int bytes = 0;
  if (message.kind_ == Message::Kind::receive) {
    MPI_Get_count(&status, MPI_BYTE, &bytes);
  }
  return static_cast<std::size_t>(bytes);
}

// A failed rank ends the collective call wherever it is awaited. A closed rank is an error only for its waiters; what
// it sent before it closed has arrived before its notice.
void Messages::check_peers(const Message& awaited, const std::string& what, bool collective) {
  if (mpi_->interrupted()) {
    throw Error(ErrorKind::closed, "the communicator was closed during " + what);
  }
  if (!collective && gave_up_) {
    throw Error(ErrorKind::peer, "this rank has given up meanwhile, so it no longer waits in " + what);
  }
  read_notices();
  if (collective) {
    answer_the_roll();
  }
  const std::lock_guard lock(peers_mutex_);
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    const PeerState& peer = peers_[r];
    const bool is_awaited = static_cast<int>(r) == awaited.peer_;
    if (peer.state == State::failed && (collective || is_awaited)) {
      throw failure_of(static_cast<int>(r), what);
    }
    if (peer.state == State::closed && is_awaited) {
      int arrived = 0;
      MPI_Status status;
      mpi_->check(MPI_Request_get_status(awaited.request_, &arrived, &status), "MPI_Request_get_status");
      if (arrived == 0) {
        const std::string how = collective ? closing_of(signature_) : "has closed its communicator";
        throw Error(ErrorKind::peer, "rank " + std::to_string(r) + " " + how + " while rank " + std::to_string(rank()) +
                                         " waited for it in " + what);
      }
    }
  }
  if (collective) {
    node_->check_nobody_failed();
    node_->pulse();  // the others of the node wait for this rank, which itself waits within a timeout
  }
}

Error Messages::failure_of(int rank, const std::string& what) const {
  const PeerState& peer = peers_[static_cast<std::size_t>(rank)];
  return {peer.kind == ErrorKind::timeout ? ErrorKind::timeout : ErrorKind::peer,
          "rank " + std::to_string(rank) + " has given up, while rank " + std::to_string(this->rank()) + " waited in " +
              what + ": " + peer.text};
}

void Messages::read_notices() {
  read_notices(Purpose::roll_call);
  read_notices(Purpose::leave);
}

void Messages::read_notices(Purpose purpose) {
  const std::lock_guard lock(peers_mutex_);
  const int tag = Tag(purpose, 0).value();
  while (true) {
    int there = 0;
    MPI_Status status;
    mpi_->check(MPI_Iprobe(MPI_ANY_SOURCE, tag, mpi_->get(), &there, &status), "MPI_Iprobe");
    if (there == 0) {
      return;
    }
    Notice notice{};
    mpi_->check(MPI_Recv(&notice, sizeof notice, MPI_BYTE, status.MPI_SOURCE, tag, mpi_->get(), MPI_STATUS_IGNORE),
                "MPI_Recv of a notice");
    PeerState& peer = peers_[static_cast<std::size_t>(status.MPI_SOURCE)];
    if (purpose == Purpose::roll_call) {
      peer.present = notice.call;
      peer.asks = peer.asks || notice.state == State::asking;
    } else {
      notice.text[sizeof notice.text - 1] = '\0';
      peer.state = notice.state;
      peer.kind = notice.kind;
      peer.text = static_cast<const char*>(notice.text);
    }
  }
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
  tell(asking, State::here, ErrorKind::peer, "");
}

void Messages::tell(const std::vector<int>& ranks, State state, ErrorKind kind, const char* text) {
  if (ranks.empty()) {
    return;
  }
  const bool is_leaving = state == State::closed || state == State::failed;
  const int tag = Tag(is_leaving ? Purpose::leave : Purpose::roll_call, 0).value();
  const std::lock_guard lock(sent_mutex_);
  Sent& sent = sent_.emplace_back(Sent{std::make_unique<Notice>(), {}});
  sent.notice->state = state;
  sent.notice->kind = kind;
  sent.notice->call = call_;
  std::strncpy(static_cast<char*>(sent.notice->text), text, sizeof sent.notice->text - 1);
  for (const int r : ranks) {
    mpi_->check(MPI_Isend(sent.notice.get(), sizeof(Notice), MPI_BYTE, r, tag, mpi_->get(),
                          &sent.requests.emplace_back(MPI_REQUEST_NULL)),
                "MPI_Isend of a notice");
  }
}

void Messages::tell_closed() noexcept { leave(State::closed, ErrorKind::peer, ""); }

void Messages::tell_failed(const Error& error) noexcept {
  gave_up_ = true;
  leave(State::failed, error.kind(), error.what());
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

void Messages::leave(State state, ErrorKind kind, const char* text) noexcept {
  if (told_.exchange(true)) {
    return;
  }
  try {
    if (!mpi_->finalized()) {
      tell(ranks_to_tell(), state, kind, text);
    }
  } catch (const Error&) {  // they will find out when their time is up
  } catch (const std::bad_alloc&) {
  }
}

// Ranks that wait in the same call answer the roll; those that do not answer in time are missing. Where no rank of a
// node answers, all of its ranks are missing.
std::vector<int> Messages::missing_ranks(int awaited) {
  std::vector<int> others;
  std::copy_if(participants_->begin(), participants_->end(), std::back_inserter(others),
               [&](int r) { return r != rank(); });
  tell(others, State::asking, ErrorKind::peer, "");
  std::vector<int> missing;
  Patience patience(std::min(roll_call_seconds, timeout_));
  while (true) {
    node_->pulse();
    read_notices();
    answer_the_roll();
    {
      const std::lock_guard lock(peers_mutex_);
      for (int r = 0; r < size(); ++r) {
        if (peers_[static_cast<std::size_t>(r)].state == State::failed) {  // it knows better who is missing
          throw failure_of(r, describe(signature_));
        }
      }
      missing.clear();
      std::copy_if(others.begin(), others.end(), std::back_inserter(missing),
                   [&](int r) { return peers_[static_cast<std::size_t>(r)].present != call_; });
    }
    if (missing.empty() || (patience.pause() && patience.over())) {
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

void Messages::raise_timeout(int awaited) {
  throw Error(ErrorKind::timeout, describe(signature_) + " timed out after " + format_number(timeout_) +
                                      " s (GRADIENTFLOW_TIMEOUT) on rank " + std::to_string(rank()) + ": no sign of " +
                                      name_ranks(missing_ranks(awaited)));
}

}  // namespace gradientflow::transport

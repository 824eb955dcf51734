// Connections of an engine: how they are made, authenticated and ended.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "../../base/text.hpp"
#include "engine.hpp"

namespace gradientflow::transport::tcp {
namespace {

using namespace std::chrono_literals;

#ifdef TCP_RTO_MAX_MS
constexpr int longest_retry_option = TCP_RTO_MAX_MS;
#else
constexpr int longest_retry_option = 44;  // since Linux 6.15
#endif
constexpr int longest_retry = 1000;               // milliseconds, the least value that the system accepts
constexpr int unsent_bytes = 256 << 10;           // bytes that the system buffers beyond data under way
constexpr std::size_t most_unauthenticated = 64;  // connections without the token, beyond one for each rank
constexpr int accepted_at_once = 64;
constexpr auto longest_connecting = 5s;      // limit, unless host_timeout is longer
constexpr auto last_chance = 500ms;          // time to connect to a host found silent
constexpr std::size_t most_connections = 2;  // connections of a pair: both may have begun at once
constexpr int reads_at_once = 16;            // reads of a connection before other connections get their turn

void set_option(int socket, int level, int name, int value) {
  setsockopt(socket, level, name, &value, sizeof value);  // if the system refuses, the connection is only slower
}

std::string described(int code) { return system_error("", code).what() + 2; }

}  // namespace

bool Engine::set_congestion(int socket) const {
  const std::string& name = options_.congestion;
  return name.empty() ||
         setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size())) == 0;
}

// Sets the options of a socket. While nothing is under way, the system sends probes; a host that does not answer them
// within host_timeout is gone.
void Engine::prepare(int socket) const {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, unsent_bytes);
  static_cast<void>(set_congestion(socket));  // checked when the network was made
  set_option(socket, IPPROTO_TCP, longest_retry_option, longest_retry);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, std::max(1, static_cast<int>(std::lround(options_.host_timeout)) - 1));
}

void Engine::watch(const Connection& connection, int operation) {
  const bool for_room = connection.is_connecting || connection.awaits_room;
  epoll_event event{EPOLLIN | (for_room ? static_cast<std::uint32_t>(EPOLLOUT) : 0U),
                    {.ptr = const_cast<Connection*>(&connection)}};  // NOLINT(*-const-cast): handle() gets it back
  if (epoll_ctl(epoll_.get(), operation, connection.descriptor(), &event) != 0) {
    const int code = errno;
    end_peer(connection.peer(), PeerState::lost,
             "the connection to " + peer(connection.peer()).address + " cannot be watched: " + described(code));
  }
}

Connection& Engine::add_connection(int rank, Descriptor socket, bool is_connecting) {
  Peer& other = peer(rank);
  Connection& connection = *other.connections.emplace_back(std::make_unique<Connection>(std::move(socket), rank));
  connection.is_connecting = is_connecting;
  if (other.out == nullptr) {
    other.out = &connection;
  }
  watch(connection, EPOLL_CTL_ADD);
  return connection;
}

Connection* Engine::connection_to(int rank) {
  Peer& other = peer(rank);
  if (other.out != nullptr || other.state != PeerState::alive) {
    return other.out;
  }
  const SocketAddress address = numeric_address(other.address);
  Descriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) {
    throw system_error("cannot make a socket for a connection to " + other.address, errno);
  }
  prepare(socket.get());
  if (connect(socket.get(), address.get(), address.length()) != 0 && errno != EINPROGRESS) {
    const int code = errno;
    end_peer(rank, state_of(code), "no connection to " + other.address + " can be made: " + described(code));
    return nullptr;
  }
  Connection& connection = add_connection(rank, std::move(socket), true);
  connection.put(greeting_to(rank));
  return connection.is_lost ? nullptr : &connection;
}

// Accepts connections. Unauthenticated ones stay until there are too many: a process that is stopped or computes may
// show the token late.
bool Engine::accept_some() {
  for (int i = 0; i < accepted_at_once; ++i) {
    Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.get() < 0) {
      if (errno == ECONNABORTED || errno == EINTR) {
        continue;
      }
      if (errno != EAGAIN) {  // the system has no more sockets now; look_after_peers() tries again
        epoll_event event{0, {.ptr = &watched_listener_}};
        epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event);
      }
      return false;
    }
    prepare(socket.get());
    const std::size_t most = most_unauthenticated + peers_.size();
    if (unauthenticated_.size() == most) {
      greet(*unauthenticated_.front());
    }
    if (unauthenticated_.size() == most) {
      ended_.push_back(std::move(unauthenticated_.front()));
      unauthenticated_.pop_front();
    }
    Unauthenticated& unauthenticated =
        *unauthenticated_.emplace_back(std::make_unique<Unauthenticated>(std::move(socket)));
    epoll_event event{EPOLLIN, {.ptr = static_cast<Watched*>(&unauthenticated)}};
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, unauthenticated.socket.get(), &event);
    greet(unauthenticated);
  }
  return true;
}

void Engine::accept_and_greet_all() {
  while (accept_some()) {
  }
  std::vector<Unauthenticated*> waiting;
  for (const auto& each : unauthenticated_) {
    waiting.push_back(each.get());
  }
  for (Unauthenticated* const each : waiting) {
    greet(*each);
  }
}

// A process that shows the token belongs to the job; other connections are closed.
void Engine::greet(Unauthenticated& unauthenticated) {
  const auto place = std::find_if(unauthenticated_.begin(), unauthenticated_.end(),
                                  [&](const auto& each) { return each.get() == &unauthenticated; });
  if (place == unauthenticated_.end()) {
    return;  // dismissed meanwhile
  }
  const ssize_t received = recv(unauthenticated.socket.get(), unauthenticated.bytes.data() + unauthenticated.count,
                                unauthenticated.bytes.size() - unauthenticated.count, MSG_DONTWAIT);
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  unauthenticated.count += static_cast<std::size_t>(std::max<ssize_t>(received, 0));
  if (received > 0 && unauthenticated.count < unauthenticated.bytes.size()) {
    return;
  }
  const std::unique_ptr<Unauthenticated>& kept = ended_.emplace_back(std::move(*place));
  unauthenticated_.erase(place);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, kept->socket.get(), nullptr);
  Greeting greeting;
  if (kept->count == kept->bytes.size()) {
    std::memcpy(&greeting, kept->bytes.data(), sizeof greeting);
    if (greeting.is_valid(rank_, static_cast<int>(peers_.size()), token_)) {
      adopt(*kept, greeting);
      return;
    }
  }
  kept->socket.close();
}

void Engine::adopt(Unauthenticated& unauthenticated, const Greeting& greeting) {
  const int rank = static_cast<int>(greeting.from);
  Peer& other = peer(rank);
  if (other.is_excluded) {
    const Header header{.kind = Header::Kind::excluded};
    static_cast<void>(::send(unauthenticated.socket.get(), &header, sizeof header, MSG_DONTWAIT | MSG_NOSIGNAL));
  }
  if (greeting.purpose == Greeting::Purpose::exclude) {
    const bool has_ended = other.state == PeerState::left || other.state == PeerState::dead;
    end_peer(rank, PeerState::excluded_us, "");
    other.state = PeerState::excluded_us;
    other.ended = has_ended ? Clock::time_point{} : other.ended;  // its state is final: sign_of() need not wait
  }
  if (other.state != PeerState::alive || other.connections.size() == most_connections) {
    unauthenticated.socket.close();
    return;
  }
  read(add_connection(rank, std::move(unauthenticated.socket), false));
}

void Engine::flush(Connection& connection) {
  if (connection.is_lost) {
    return;
  }
  const Connection::IoStatus outcome = connection.flush(sent_);
  for (Sending* const sending : std::exchange(sent_, {})) {
    end(sending);
  }
  if (outcome == Connection::IoStatus::failed) {
    const int code = errno;
    drain(connection);  // reads data from before the failure
    lose(connection, described(code), code);
    return;
  }
  const bool is_blocked = outcome == Connection::IoStatus::blocked;
  const bool is_made = connection.is_connecting && connection.has_sent();
  if (is_blocked != connection.awaits_room || is_made) {
    connection.is_connecting = connection.is_connecting && !is_made;
    connection.awaits_room = is_blocked;
    watch(connection, EPOLL_CTL_MOD);
  }
}

bool Engine::read(Connection& connection) {
  auto outcome = Connection::IoStatus::more;
  for (int turn = 0; turn < reads_at_once && outcome == Connection::IoStatus::more && !connection.is_lost; ++turn) {
    try {
      outcome = connection.read(spill_, *this);
    } catch (const Error& error) {  // the input is malformed
      lose(connection, error.what());
    } catch (const std::bad_alloc&) {  // data just read is lost
      lose(connection, "this process has no memory for what comes");
    }
  }
  if (connection.is_lost) {
    return false;
  }
  if (outcome == Connection::IoStatus::closed) {
    lose(connection, "it was closed at the other end");
  } else if (outcome == Connection::IoStatus::failed) {
    const int code = errno;
    lose(connection, described(code), code);
  }
  return outcome == Connection::IoStatus::more;
}

// Reads all data that is there.
void Engine::drain(Connection& connection) {
  while (read(connection)) {
  }
}

// Returns the state of a peer according to the system's error `code`; lost if the error tells no more.
Engine::PeerState Engine::state_of(int code) noexcept {
  switch (code) {
    case ECONNREFUSED:
      return PeerState::dead;
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
    case ETIMEDOUT:
      return PeerState::silent;
    default:
      return PeerState::lost;
  }
}

// Ends a connection and its peer. First reads all data that the peer has sent through another connection, even if that
// connection has not been accepted yet.
void Engine::lose(Connection& connection, const std::string& how, int code) {
  if (std::exchange(connection.is_lost, true)) {
    return;
  }
  accept_and_greet_all();
  const int rank = connection.peer();
  Peer& other = peer(rank);
  for (std::size_t i = 0; i < other.connections.size(); ++i) {  // NOLINT(modernize-loop-convert): reading changes them
    if (!other.connections[i]->is_lost) {
      drain(*other.connections[i]);
    }
  }
  const bool was_made = !connection.is_connecting;
  end_peer(rank, state_of(code),
           was_made ? "the connection to " + other.address + " has ended: " + how
                    : "no connection to " + other.address + " can be made: " + how);
}

void Engine::end_peer(int rank, PeerState state, const std::string& how) {
  Peer& other = peer(rank);
  if (other.state != PeerState::alive) {
    return;
  }
  other.state = state;
  other.how = how;
  other.ended = Clock::now();
  other.was_silent = state == PeerState::silent;
  other.out = nullptr;
  deaths_ += state == PeerState::left ? 0 : 1;
  has_found_ = true;
  std::vector<Sending*> unsent;
  for (auto& connection : std::exchange(other.connections, {})) {
    connection->is_lost = true;
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection->descriptor(), nullptr);
    shutdown(connection->descriptor(), SHUT_RDWR);
    connection->take_unsent(unsent);
    const Connection::Landing landing = std::exchange(connection->landing(), {});
    if (landing.receiving != nullptr && landing.number == 0) {
      end(*landing.receiving, 0, loss(rank));
    }
    if (landing.arrived != nullptr) {
      landing.arrived->connection = nullptr;
      landing.arrived->is_broken = true;
    }
    lost_.push_back(std::move(connection));
  }
  for (const auto& [number, sending] : std::exchange(other.announced, {})) {
    unsent.push_back(sending);
  }
  for (Sending* const sending : unsent) {
    end(sending, loss(rank));
  }
  for (const auto& [number, fetched] : std::exchange(other.fetched, {})) {
    if (fetched.receiving != nullptr) {
      end(*fetched.receiving, 0, loss(rank));
    }
  }
  for (const auto& [id, inbox] : inboxes_) {
    if (const auto posted = inbox->posted.find(rank); posted != inbox->posted.end()) {
      for (Receiving* const receiving : std::exchange(posted->second, {})) {
        receiving->inbox = nullptr;
        end(*receiving, 0, loss(rank));
      }
    }
    inbox->arrived.remove_if(
        [&](const auto& each) { return each->source == rank && (each->is_broken || each->number > 0); });
  }
}

// Reports whether the peer's host has acknowledged nothing for too long, although there was something to acknowledge.
// To a process that does not read, the system sends only probes, at growing intervals: then an unanswered probe is the
// sign.
bool Engine::is_silent(Connection& connection, Clock::time_point now) const {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(connection.descriptor(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0 ||
      (info.tcpi_unacked == 0 && (info.tcpi_notsent_bytes == 0 || info.tcpi_probes == 0))) {
    connection.unacknowledged_since.reset();
    return false;
  }
  if (!connection.unacknowledged_since) {
    connection.unacknowledged_since = now;
  }
  const auto silent = std::min<Clock::duration>(now - *connection.unacknowledged_since,
                                                std::chrono::milliseconds(info.tcpi_last_ack_recv));
  return silent > std::chrono::duration<double>(options_.host_timeout);
}

void Engine::look_after_peers(Clock::time_point now) {
  epoll_event event{EPOLLIN, {.ptr = &watched_listener_}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event);
  connect_to_awaited();
  const auto usual =
      std::max<std::chrono::duration<double>>(longest_connecting, std::chrono::duration<double>(options_.host_timeout));
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    for (std::size_t i = 0; i < peers_[r].connections.size(); ++i) {
      Connection& connection = *peers_[r].connections[i];
      const auto rank = static_cast<int>(r);
      if (connection.is_connecting) {
        const auto longest = is_host_silent(rank, now) ? std::chrono::duration<double>(last_chance) : usual;
        if (now - connection.since > longest) {
          lose(connection, "no answer within " + format_number(longest.count()) + " s", ETIMEDOUT);
        }
      } else if (is_silent(connection, now)) {
        end_peer(rank, PeerState::silent,
                 peers_[r].address + " has acknowledged nothing for " + format_number(options_.host_timeout) +
                     " s (GRADIENTFLOW_HOST_TIMEOUT)");
      }
    }
  }
}

// Reports whether another rank at the same host has been found silent lately.
bool Engine::is_host_silent(int rank, Clock::time_point now) const {
  const std::string host = numeric_address(peers_[static_cast<std::size_t>(rank)].address).host();
  return std::ranges::any_of(peers_, [&](const Peer& other) {
    return other.was_silent && now - other.ended < longest_connecting && numeric_address(other.address).host() == host;
  });
}

// Returns the time until which a notice to a rank may be under way. The rank's host has the usual time to acknowledge
// it (host_timeout), counted from its last acknowledgment.
Engine::Clock::time_point Engine::last_chance_of(int rank, Clock::time_point now) const {
  const Peer& other = peers_[static_cast<std::size_t>(rank)];
  const auto soon = now + last_chance;
  if (other.state == PeerState::silent || is_host_silent(rank, now)) {
    return soon;
  }
  std::chrono::milliseconds silent{0};
  if (other.out != nullptr) {
    tcp_info info{};
    socklen_t length = sizeof info;
    if (getsockopt(other.out->descriptor(), IPPROTO_TCP, TCP_INFO, &info, &length) == 0) {
      silent = std::chrono::milliseconds(info.tcpi_last_ack_recv);
    }
  }
  const std::chrono::duration<double> patience(options_.host_timeout);
  return std::max(soon, now - silent + std::chrono::duration_cast<Clock::duration>(patience));
}

// A rank that dies before it has sent anything is noticed only through a connection.
void Engine::connect_to_awaited() {
  std::vector<int> awaited;
  for (const auto& [id, inbox] : inboxes_) {
    for (const auto& [source, receives] : inbox->posted) {
      if (!receives.empty() && source != rank_ && peer(source).connections.empty()) {
        awaited.push_back(source);
      }
    }
  }
  for (const int rank : awaited) {
    if (connection_to(rank) != nullptr) {
      note_output(rank);
    }
  }
}

}  // namespace gradientflow::transport::tcp

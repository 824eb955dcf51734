#include "tcp_store.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "../../base/error.hpp"
#include "../../base/forks.hpp"
#include "../../base/text.hpp"
#include "../../base/waits.hpp"
#include "../process.hpp"

namespace gradientflow::transport {
namespace {

using namespace std::chrono_literals;

constexpr const char* other_server = "gradientflow/could not serve";
constexpr auto first_pause = 10ms;  // pause between attempts
constexpr auto longest_pause = 500ms;

// Stores that this process serves, by port.
struct Servers {
  std::mutex mutex;
  int forks = 0;
  std::map<int, std::weak_ptr<StoreServer>> all;
};

Servers& servers() {
  static auto* const all = new Servers;  // NOLINT(*-owning-memory): lives as long as any thread
  return *all;
}

bool is_here(const HostPort& place, const Until& until) {
  try {
    for (const SocketAddress& each : resolve(place, until)) {
      const auto source = source_towards(each);
      if (each.is_any() || each.is_loopback() || (source && source->bytes() == each.bytes())) {
        return true;
      }
    }
  } catch (const Error&) {  // a place that cannot be resolved is not here
  }
  return false;
}

std::shared_ptr<StoreServer> serve_at(const HostPort& place, const std::string& token) {
  Servers& of_process = servers();
  const std::lock_guard lock(of_process.mutex);
  if (const int forks = count_forks(); of_process.forks != forks) {
    of_process.forks = forks;
    of_process.all.clear();
  }
  if (place.port != 0) {
    if (auto server = of_process.all[place.port].lock(); server != nullptr && server->has_token(token)) {
      return server;
    }
  }
  auto server = std::make_shared<StoreServer>(place, token, StoreServer::Limits{});
  of_process.all[server->port()] = server;
  return server;
}

Error timeout_of(const std::string& what, const Until& until, const std::string& cause = "") {
  return {ErrorKind::timeout,
          what + " within " + format_number(until.seconds()) + " s" + (cause.empty() ? "" : ": " + cause)};
}

// Receives more. Returns false if the time is up; throws Error(peer) where the connection has ended.
bool receive_more(const Descriptor& socket, std::string& received, const std::string& name, const Until& until) {
  std::array<char, std::size_t{64} * 1024> buffer;  // NOLINT(*-member-init): it is written first
  while (true) {
    if (!until.ready(socket.get(), POLLIN)) {
      return false;
    }
    const ssize_t count =
        recv(socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);  // NOLINT(*.BlockInCriticalSection)
    if (count > 0) {
      received.append(buffer.data(), static_cast<std::size_t>(count));
      return true;
    }
    if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
      throw Error(ErrorKind::peer,
                  name + " has gone: " + (count == 0 ? "it closed the connection" : std::strerror(errno)));
    }
  }
}

bool send_all(const Descriptor& socket, const std::string& bytes, const std::string& name, const Until& until) {
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t count = send(socket.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      sent += static_cast<std::size_t>(count);
    } else if (errno != EAGAIN && errno != EINTR) {
      throw Error(ErrorKind::peer, name + " has gone: " + std::strerror(errno));
    } else if (!until.ready(socket.get(), POLLOUT)) {
      return false;
    }
  }
  return true;
}

}  // namespace

TcpStore::TcpStore(const std::string& places, bool serves, std::string token, const Until& until)
    : places_(parse_host_ports(places)), token_(std::move(token)), forks_(count_forks()) {
  if (token_.size() > longest_token) {
    throw Error(ErrorKind::value, "the token of a store has at most " + std::to_string(longest_token) + " bytes");
  }
  if (serves) {
    serve(until);
  }
  for (const HostPort& each : places_) {
    if (each.port == 0) {
      throw Error(ErrorKind::value, "'" + each.text() + "' has no port at which a store could be reached");
    }
  }
  await_names(until);
  connect(until);
}

// Serves at the first place of this host that is free. If no place seems to be on this host, tries all places. Throws,
// without trying more places, if this job is served already.
void TcpStore::serve(const Until& until) {
  std::vector<HostPort*> here;
  for (HostPort& each : places_) {
    if (places_.size() == 1 || is_here(each, until)) {
      here.push_back(&each);
    }
  }
  if (here.empty()) {
    std::transform(places_.begin(), places_.end(), std::back_inserter(here), [](HostPort& each) { return &each; });
  }
  for (HostPort* const each : here) {
    try {
      server_ = serve_at(*each, token_);
      each->port = server_->port();
      return;
    } catch (const Error& error) {
      if (error.code() != EADDRINUSE || report_second_server(*each, until) || here.size() == 1) {
        throw;
      }
    }
  }
  throw Error(ErrorKind::system, "cannot listen at " + address() + ": other jobs or other programs serve there",
              EADDRINUSE);
}

// Returns true if the store at `place` belongs to this job. Then tells that store which process could not serve beside
// it.
bool TcpStore::report_second_server(const HostPort& place, const Until& until) {
  const Until soon = until.from_now(std::min(until.remaining(), waits::store_notice.seconds()));
  bool is_ours = false;
  try {
    is_ours = !try_place(place, soon);
    if (is_ours) {
      set(other_server, name_of_this_process(), soon);
    }
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): it refuses this process, or ends
  }
  return is_ours;
}

// Waits until a name of the places is known, because no rank can come to an unknown name. If other ranks have come,
// only this host does not know the name.
void TcpStore::await_names(const Until& until) const {
  if (server_ != nullptr && names_may_come_late()) {
    return;
  }
  try {
    await_name(places_, until);
  } catch (const UnknownName& error) {
    if (server_ != nullptr && server_->admitted() > 0) {
      return;
    }
    if (until.over()) {
      throw timeout_of("cannot reach " + name(), until, error.what());
    }
    throw Error(ErrorKind::system, "the ranks cannot meet at " + address() + ": " + error.what());
  }
}

std::string TcpStore::address() const {
  std::string text;
  for (const HostPort& each : places_) {
    text += text.empty() ? "" : ",";
    text += each.text();
  }
  return text;
}

std::string TcpStore::name() const { return "the store at " + address(); }

void TcpStore::set(const std::string& key, const std::string& value, const Until& until) {
  call({.kind = StoreRequest::Kind::set, .key = key, .value = value, .expected = {}, .amount = 0}, until);
}

std::optional<std::string> TcpStore::get(const std::string& key, const Until& until) {
  if (until.over()) {
    return look(key, until);
  }
  return call({.kind = StoreRequest::Kind::get, .key = key, .value = {}, .expected = {}, .amount = 0}, until);
}

std::optional<std::string> TcpStore::look(const std::string& key, const Until& until) {
  return call({.kind = StoreRequest::Kind::look, .key = key, .value = {}, .expected = {}, .amount = 0}, until);
}

std::int64_t TcpStore::add(const std::string& key, std::int64_t amount, const Until& until) {
  return sum_of(
      call({.kind = StoreRequest::Kind::add, .key = key, .value = {}, .expected = {}, .amount = amount}, until), 0);
}

std::optional<std::string> TcpStore::compare_set(const std::string& key, const std::optional<std::string>& expected,
                                                 const std::string& desired, const Until& until) {
  return call(
      {.kind = StoreRequest::Kind::compare_set, .key = key, .value = desired, .expected = expected, .amount = 0},
      until);
}

bool TcpStore::remove(const std::string& key, const Until& until) {
  return call({.kind = StoreRequest::Kind::remove, .key = key, .value = {}, .expected = {}, .amount = 0}, until)
      .has_value();
}

std::string TcpStore::remark() {
  if (server_ == nullptr) {
    return "";
  }
  std::string said;
  try {
    if (const auto other = look(other_server, Until(waits::store_answer.seconds()))) {
      said += "; " + *other + " wanted to serve the store, too: two processes were told to be rank 0";
    }
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): it stays unknown
  }
  if (const int refused = server_->refused(); refused > 0) {
    said += "; " + std::to_string(refused) + (refused == 1 ? " connection" : " connections") +
            " of other jobs or with another token (GRADIENTFLOW_TOKEN) had to be refused";
  }
  if (std::none_of(places_.begin(), places_.end(),
                   [](const HostPort& each) { return is_here(each, Until(waits::store_place.seconds())); })) {
    said += "; this process serves the store, but its host does not have the address of " + address() +
            ": the others may look for it elsewhere";
  }
  return said;
}

std::optional<std::string> TcpStore::call(const StoreRequest& request, const Until& until) {
  if (forks_ != count_forks()) {
    throw Error(ErrorKind::closed, name() + " belongs to the process that this one was forked from");
  }
  check_key(request.key);
  check_value(request.value);
  check_value(request.expected.value_or(""));
  // A call that only reads gets an answer, even if no time is left.
  const Until& limit = until.over() ? until.from_now(waits::store_answer.seconds()) : until;
  const std::unique_lock lock = limit.lock(mutex_);
  if (!lock) {
    throw timeout_of("other threads have not ended their calls of " + name(), limit);
  }
  if (!socket_) {
    connect(limit);
  }
  try {
    return exchange(request, limit);
  } catch (...) {
    socket_.close();  // the answer may still come, and does not belong to the next call
    throw;
  }
}

std::optional<std::string> TcpStore::exchange(const StoreRequest& request, const Until& until) {
  const Error late = timeout_of(name() + " has not answered", until);
  if (!send_all(socket_, encode(request), name(), until)) {
    throw Error(late);
  }
  std::string received;
  Parsed<StoreAnswer> parsed = parse_answer(received);
  while (parsed.state == Parsed<StoreAnswer>::ParseStatus::incomplete) {
    if (!receive_more(socket_, received, name(), until)) {
      if (request.kind == StoreRequest::Kind::get && received.empty()) {
        socket_.close();
        return std::nullopt;
      }
      throw Error(late);
    }
    if (received.size() >= parsed.bytes) {
      parsed = parse_answer(received);
    }
  }
  if (parsed.state == Parsed<StoreAnswer>::ParseStatus::wrong || parsed.bytes != received.size()) {
    throw Error(ErrorKind::internal, name() + " has answered what it should not");
  }
  if (parsed.message.kind == StoreAnswer::Kind::refusal) {
    throw Error(ErrorKind::value, name() + " has refused '" + request.key + "': " + parsed.message.value);
  }
  return parsed.message.kind == StoreAnswer::Kind::nothing ? std::nullopt
                                                           : std::optional(std::move(parsed.message.value));
}

void TcpStore::connect(const Until& until) {
  if (server_ != nullptr) {
    const Until soon = until.from_now(std::max(until.remaining(), waits::store_answer.seconds()));
    if (const auto cause = try_address(server_->address(), name(), soon)) {
      throw Error(ErrorKind::system, "cannot reach " + name() + " from the process that serves it: " + *cause);
    }
    return;
  }
  // Several places are tried briefly, as other programs may listen there; but a slow network needs more time than a
  // fast one.
  double patience = (places_.size() > 1 ? waits::store_first_attempt : waits::store_attempt).seconds();
  auto pause = first_pause;
  while (true) {
    std::string causes;
    for (const HostPort& place : places_) {
      const auto cause = try_place(place, until.from_now(std::min(until.remaining(), patience)));
      if (!cause) {
        return;
      }
      add_cause(causes, *cause);
    }
    if (!until.sleep(pause)) {
      throw timeout_of("cannot reach " + name(), until, causes);
    }
    pause = std::min<std::chrono::milliseconds>(pause * 3 / 2, longest_pause);
    patience = std::min(2 * patience, waits::store_attempt.seconds());
  }
}

// Each of these functions returns why there is no connection, or nothing once there is a connection.

// Throws after a refusal at the only place; otherwise the job may be served at another place.
std::optional<std::string> TcpStore::try_place(const HostPort& place, const Until& until) {
  std::vector<SocketAddress> addresses;
  try {
    addresses = resolve(place, until);
  } catch (const Error& error) {
    return error.what();
  }
  std::string cause;
  for (const SocketAddress& each : addresses) {
    try {
      const auto failure = try_address(each, "the store at " + place.text(), until);
      if (!failure) {
        return std::nullopt;
      }
      cause = *failure;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::mismatch || places_.size() == 1) {
        throw;
      }
      return error.what();
    }
  }
  return (places_.size() > 1 ? place.text() + ": " : "") + cause;
}

std::optional<std::string> TcpStore::try_address(const SocketAddress& address, const std::string& name,
                                                 const Until& soon) {
  Descriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) {
    return std::strerror(errno);
  }
  const auto set = [&](int level, int option, int value) {
    setsockopt(socket.get(), level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);  // notices a dead host
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  int error = ::connect(socket.get(), address.get(), address.length()) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    if (!soon.ready(socket.get(), POLLOUT)) {
      return "no answer from " + address.host();
    }
    socklen_t error_length = sizeof error;
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &error_length);
  }
  if (error != 0) {
    return std::strerror(error);
  }
  const SocketAddress here = SocketAddress::of_socket(socket.get());
  if (here.port() == address.port() && here.bytes() == address.bytes()) {  // TCP may connect a socket to itself
    return std::strerror(ECONNREFUSED);
  }
  std::string cause;
  if (!greet(socket, name, soon, cause)) {
    return cause;
  }
  socket_ = std::move(socket);
  return std::nullopt;
}

bool TcpStore::greet(const Descriptor& socket, const std::string& name, const Until& until, std::string& cause) const {
  Parsed<Welcome> parsed;
  try {
    std::string received;
    bool is_in_time = send_all(socket, encode(Hello{.version = store_version, .token = token_}), name, until);
    while (is_in_time && parsed.state == Parsed<Welcome>::ParseStatus::incomplete) {
      is_in_time = receive_more(socket, received, name, until);
      parsed = parse_welcome(received);
    }
    if (!is_in_time) {
      cause = "whatever listens there has not answered; a store of GradientFlow does so at once";
      return false;
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::peer) {
      throw;
    }
    cause = "whatever listens there closes connections; it may be no store of GradientFlow";
    return false;
  }
  if (parsed.state == Parsed<Welcome>::ParseStatus::wrong) {
    throw Error(ErrorKind::mismatch, name + " is none of GradientFlow: something else answers there");
  }
  if (parsed.message.admission == Admission::other_version || parsed.message.version != store_version) {
    throw Error(ErrorKind::mismatch, name + " speaks version " + std::to_string(parsed.message.version) +
                                         " of the protocol, and this process version " + std::to_string(store_version) +
                                         ": they run different versions of GradientFlow");
  }
  if (parsed.message.admission == Admission::other_token) {
    throw Error(ErrorKind::mismatch, name +
                                         " refused the token: this process and the store belong to different jobs, or "
                                         "GRADIENTFLOW_TOKEN differs");
  }
  return true;
}

}  // namespace gradientflow::transport

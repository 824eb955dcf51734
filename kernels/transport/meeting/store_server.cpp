#include "store_server.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <random>
#include <thread>
#include <utility>

#include "../../base/error.hpp"
#include "../../base/forks.hpp"
#include "../../base/thread.hpp"

namespace gradientflow::transport {
namespace {

// Numbers of epoll's events, beside connections.
constexpr std::uint64_t the_listener = 0;
constexpr std::uint64_t the_stop = 1;

constexpr auto before_accepting_again = std::chrono::milliseconds(100);  // pause when too many files are open
constexpr std::size_t bytes_at_once = std::size_t{64} * 1024;
constexpr std::size_t most_unauthenticated_bytes = 2048;
constexpr int turns_at_once = 4;         // reads for one connection at a time
constexpr int connections_at_once = 64;  // connections accepted at a time
constexpr std::size_t kept_capacity = bytes_at_once;

void set_option(int socket, int level, int option, int value) noexcept {
  setsockopt(socket, level, option, &value, sizeof value);
}

// Returns the addresses to listen at, the best first.
std::vector<SocketAddress> addresses_to_listen_at(const HostPort& place) {
  std::vector<SocketAddress> addresses;
  for (const char* const host : {"127.0.0.1", "::1"}) {
    if (place.host == "localhost") {
      addresses.push_back(numeric_address(host, place.port));
    }
  }
  if (const auto address = parse_address(place.host, place.port)) {
    addresses.push_back(*address);
  }
  if (place.host != "localhost") {
    addresses.push_back(numeric_address("::", place.port));  // serves IPv4, too
    addresses.push_back(numeric_address("0.0.0.0", place.port));
  }
  return addresses;
}

// Starts to listen. If two sockets bound to one address begin at the same moment, Linux may refuse both. Then both try
// again, each after a random pause.
bool starts_to_listen(const Descriptor& socket) {
  std::random_device random;
  std::uniform_int_distribution<int> milliseconds(1, 20);
  for (int attempt = 0; listen(socket.get(), SOMAXCONN) != 0; ++attempt) {
    if (errno != EADDRINUSE || attempt == 5) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds(random)));
  }
  return true;
}

Descriptor try_to_listen(const SocketAddress& address) {
  Descriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) {
    return {};
  }
  set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.family() == AF_INET6) {
    set_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, address.is_any() ? 0 : 1);
  }
  if (bind(socket.get(), address.get(), address.length()) != 0 || !starts_to_listen(socket)) {
    const int error = errno;
    socket.close();
    errno = error;
  }
  return socket;
}

}  // namespace

StoreServer::StoreServer(const HostPort& place, std::string token, const Limits& limits)
    : token_(std::move(token)),
      limits_(limits),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      stop_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      buffer_(bytes_at_once, '\0'),
      forks_(count_forks()) {
  if (token_.size() > longest_token) {
    throw Error(ErrorKind::value, "the token of a store has at most " + std::to_string(longest_token) + " bytes");
  }
  if (!epoll_ || !stop_) {
    throw system_error("cannot make a store", errno);
  }
  listen_at(place);
  for (const auto& [descriptor, number] : {std::pair(listener_.get(), the_listener), {stop_.get(), the_stop}}) {
    epoll_event event{EPOLLIN, {.u64 = number}};
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
      throw system_error("cannot make a store", errno);
    }
  }
  // Signals go to the threads of the program.
  sigset_t all{};
  sigset_t before{};
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::make_unique<std::thread>(start_thread("the thread of a store", [this] { run(); }));
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

StoreServer::~StoreServer() {
  if (forks_ != count_forks()) {  // the thread is the parent's
    static_cast<void>(thread_.release());
    return;
  }
  const std::uint64_t one = 1;
  static_cast<void>(write(stop_.get(), &one, sizeof one));
  thread_->join();
}

void StoreServer::listen_at(const HostPort& place) {
  int error = 0;
  for (const SocketAddress& address : addresses_to_listen_at(place)) {
    listener_ = try_to_listen(address);
    if (listener_) {
      break;
    }
    error = errno;
    if (error != EADDRNOTAVAIL && error != EAFNOSUPPORT) {
      break;
    }
  }
  if (!listener_) {
    const std::string advice =
        error == EADDRINUSE ? "; another rank 0, another job or another program serves there" : "";
    throw Error(ErrorKind::system, system_error("cannot listen at " + place.text(), error).what() + advice, error);
  }
  address_ = SocketAddress::of_socket(listener_.get());
  if (address_.is_any()) {
    const int port = address_.port();
    // A socket for both families has IPv4 in any case, IPv6 perhaps not.
    address_ = numeric_address("127.0.0.1", port);
  }
}

void StoreServer::run() noexcept {
  std::array<epoll_event, 64> events{};
  while (true) {
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), milliseconds_to_wait());
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events.at(static_cast<std::size_t>(i));
      if (event.data.u64 == the_stop) {
        return;
      }
      try {
        if (event.data.u64 == the_listener) {
          accept_all();
        } else {
          serve(event.data.u64, event.events);
        }
      } catch (const std::exception&) {  // no memory is left
        drop(event.data.u64);
      }
    }
    if (accepts_again_ && Clock::now() >= *accepts_again_) {
      accepts_again_.reset();
      epoll_event event{EPOLLIN, {.u64 = the_listener}};
      epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event);
    }
    drop_late_unauthenticated();
  }
}

int StoreServer::milliseconds_to_wait() const {
  std::optional<Clock::time_point> next = accepts_again_;
  if (!unauthenticated_.empty()) {
    const auto end = connections_.at(*unauthenticated_.begin()).since +
                     std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limits_.seconds));
    next = next ? std::min(*next, end) : end;
  }
  if (!next) {
    return -1;
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now()).count();
  return static_cast<int>(std::clamp<long>(left, 0, 60'000));
}

void StoreServer::drop_late_unauthenticated() {
  const std::chrono::duration<double> most(limits_.seconds);
  while (!unauthenticated_.empty() && Clock::now() - connections_.at(*unauthenticated_.begin()).since >= most) {
    drop(*unauthenticated_.begin());
  }
}

void StoreServer::accept_all() {
  for (int i = 0; i < connections_at_once; ++i) {
    Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        accept_again_at(Clock::now() + before_accepting_again);
      }
      if (errno == ECONNABORTED || errno == EINTR) {
        continue;
      }
      return;
    }
    if (unauthenticated_.size() >= limits_.unauthenticated) {
      drop(*unauthenticated_.begin());
    }
    set_option(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(socket.get(), SOL_SOCKET, SO_KEEPALIVE, 1);  // notices a dead host
    set_option(socket.get(), IPPROTO_TCP, TCP_KEEPIDLE, 10);
    set_option(socket.get(), IPPROTO_TCP, TCP_KEEPINTVL, 5);
    const std::uint64_t number = next_number_++;
    epoll_event event{EPOLLIN | EPOLLRDHUP, {.u64 = number}};
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket.get(), &event) != 0) {
      continue;
    }
    Connection& connection = connections_[number];
    connection.socket = std::move(socket);
    connection.since = Clock::now();
    connection.events = event.events;
    unauthenticated_.insert(number);
    serve(number, EPOLLIN);  // most have sent their greeting by now
  }
}

void StoreServer::accept_again_at(Clock::time_point time) {
  accepts_again_ = time;
  epoll_event event{0, {.u64 = the_listener}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event);
}

// Each of the following returns false if the connection is to be dropped.

void StoreServer::serve(std::uint64_t number, std::uint32_t events) {
  const auto found = connections_.find(number);
  if (found == connections_.end()) {
    return;
  }
  Connection& connection = found->second;
  bool stays = (events & EPOLLERR) == 0;
  if (stays && (events & EPOLLOUT) != 0) {
    stays = flush(connection) && take_messages(number, connection);
  }
  const bool has_hung_up = (events & (EPOLLRDHUP | EPOLLHUP)) != 0;
  if (stays && connection.reads && (has_hung_up || (events & EPOLLIN) != 0)) {
    stays = receive(number, connection);
  }
  if (has_hung_up && !connection.reads) {  // cut off in mid-answer, or waiting for an answer
    stays = false;
  }
  if (stays) {
    watch(number, connection);
  } else {
    drop(number);
  }
}

bool StoreServer::receive(std::uint64_t number, Connection& connection) {
  for (int i = 0; i < turns_at_once && connection.reads; ++i) {
    const std::size_t most =
        connection.state == Connection::Phase::member ? buffer_.size() : most_unauthenticated_bytes;
    const ssize_t count = recv(connection.socket.get(), buffer_.data(), most, 0);
    if (count <= 0) {
      return count < 0 && (errno == EAGAIN || errno == EINTR);
    }
    if (connection.state == Connection::Phase::leaving) {
      continue;
    }
    const auto bytes = static_cast<std::size_t>(count);
    if (received_ + bytes > limits_.bytes) {
      return false;
    }
    connection.received.append(buffer_, 0, bytes);
    received_ += bytes;
    if (!take_messages(number, connection)) {
      return false;
    }
  }
  return true;
}

bool StoreServer::take_messages(std::uint64_t number, Connection& connection) {
  while (connection.reads && connection.state != Connection::Phase::leaving && !connection.received.empty()) {
    if (connection.state == Connection::Phase::unauthenticated) {
      const std::size_t before = connection.received.size();
      if (!admit(number, connection)) {
        return false;
      }
      if (connection.received.size() == before) {
        return true;
      }
      continue;
    }
    Parsed<StoreRequest> parsed = parse_request(connection.received);
    if (parsed.state == Parsed<StoreRequest>::ParseStatus::wrong) {
      return false;
    }
    if (parsed.state == Parsed<StoreRequest>::ParseStatus::incomplete) {
      return true;
    }
    connection.received.erase(0, parsed.bytes);
    received_ -= parsed.bytes;
    if (connection.received.capacity() > kept_capacity) {
      connection.received.shrink_to_fit();
    }
    if (!handle(number, connection, parsed.message)) {
      return false;
    }
  }
  return true;
}

bool StoreServer::admit(std::uint64_t number, Connection& connection) {
  const Parsed<Hello> parsed = parse_hello(connection.received);
  if (parsed.state == Parsed<Hello>::ParseStatus::wrong) {
    return false;
  }
  if (parsed.state == Parsed<Hello>::ParseStatus::incomplete) {
    return true;
  }
  connection.received.erase(0, parsed.bytes);
  received_ -= parsed.bytes;
  Welcome welcome;
  if (parsed.message.version != store_version) {
    welcome.admission = Admission::other_version;
  } else if (!has_token(parsed.message.token)) {
    welcome.admission = Admission::other_token;
    refused_.fetch_add(1, std::memory_order_relaxed);
  }
  connection.head = encode(welcome);
  connection.reads = false;
  if (welcome.admission == Admission::granted) {
    connection.state = Connection::Phase::member;
    admitted_.fetch_add(1, std::memory_order_relaxed);
    unauthenticated_.erase(number);
  } else {
    connection.state = Connection::Phase::leaving;
    received_ -= connection.received.size();
    connection.received.clear();
  }
  return flush(connection);
}

bool StoreServer::handle(std::uint64_t number, Connection& connection, StoreRequest& request) {
  using Kind = StoreRequest::Kind;
  const auto found = values_.find(request.key);
  const Value present = found == values_.end() ? nullptr : found->second;
  const bool is_write = request.kind == Kind::set || request.kind == Kind::add || request.kind == Kind::compare_set;
  if (is_write && stored_ + request.key.size() + request.value.size() > limits_.bytes) {
    return refuse(connection, "the store is full");
  }
  switch (request.kind) {
    case Kind::get:
      if (present == nullptr) {
        connection.reads = false;
        waiting_[request.key].insert(number);
        connection.waits_for = std::move(request.key);
        return true;
      }
      [[fallthrough]];
    case Kind::look:
      break;
    case Kind::set:
      put(request.key, std::move(request.value));
      return answer(connection, StoreAnswer::Kind::nothing, nullptr);
    case Kind::add:
      try {
        put(request.key, std::to_string(sum_of(present ? std::optional(*present) : std::nullopt, request.amount)));
      } catch (const Error& error) {
        return refuse(connection, error.what());
      }
      break;
    case Kind::compare_set:
      if (present == nullptr ? !request.expected : request.expected == *present) {
        put(request.key, std::move(request.value));
      }
      break;
    case Kind::remove:  // answers with an empty value if there was one
      if (present != nullptr) {
        stored_ -= request.key.size() + present->size();
        values_.erase(found);
      }
      return answer(connection, present != nullptr ? StoreAnswer::Kind::value : StoreAnswer::Kind::nothing, nullptr);
  }
  const auto now = values_.find(request.key);
  return now == values_.end() ? answer(connection, StoreAnswer::Kind::nothing, nullptr)
                              : answer(connection, StoreAnswer::Kind::value, now->second);
}

void StoreServer::put(const std::string& key, std::string value) {
  const auto made = std::make_shared<const std::string>(std::move(value));
  const auto [entry, is_new] = values_.try_emplace(key, made);
  stored_ += made->size() + (is_new ? key.size() : 0);
  if (!is_new) {
    stored_ -= entry->second->size();
    entry->second = made;
  }
  tell_waiting(key, made);
}

void StoreServer::tell_waiting(const std::string& key, const Value& value) {
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) {
    return;
  }
  const std::set<std::uint64_t> numbers = std::move(found->second);
  waiting_.erase(found);
  for (const std::uint64_t number : numbers) {
    Connection& connection = connections_.at(number);
    connection.waits_for.clear();
    if (answer(connection, StoreAnswer::Kind::value, value)) {
      watch(number, connection);
    } else {
      drop(number);
    }
  }
}

bool StoreServer::answer(Connection& connection, StoreAnswer::Kind kind, Value value) {
  connection.head = encode_head(kind, value == nullptr ? 0 : value->size());
  connection.body = std::move(value);
  connection.reads = false;
  return flush(connection);
}

bool StoreServer::refuse(Connection& connection, const std::string& why) {
  return answer(connection, StoreAnswer::Kind::refusal, std::make_shared<const std::string>(why));
}

bool StoreServer::flush(Connection& connection) {
  const std::string& head = connection.head;
  const std::size_t body = connection.body == nullptr ? 0 : connection.body->size();
  while (connection.sent < head.size() + body) {
    std::array<iovec, 2> parts{};
    std::size_t count = 0;
    const auto add = [&](const std::string& text, std::size_t from) {
      // Memory that is sent is only read; iovec has no const form.
      parts.at(count++) = {const_cast<char*>(text.data()) + from, text.size() - from};  // NOLINT(*-const-cast)
    };
    if (connection.sent < head.size()) {
      add(head, connection.sent);
    }
    if (body > 0) {
      add(*connection.body, connection.sent < head.size() ? 0 : connection.sent - head.size());
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t sent = sendmsg(connection.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      return errno == EAGAIN || errno == EINTR;
    }
    connection.sent += static_cast<std::size_t>(sent);
  }
  connection.head.clear();
  connection.body.reset();
  connection.sent = 0;
  if (connection.waits_for.empty()) {
    connection.reads = true;
  }
  if (connection.state == Connection::Phase::leaving) {
    shutdown(connection.socket.get(), SHUT_WR);
  }
  return true;
}

void StoreServer::watch(std::uint64_t number, Connection& connection) {
  const std::uint32_t wanted =
      EPOLLRDHUP | (connection.reads ? EPOLLIN : 0U) | (connection.head.empty() ? 0U : EPOLLOUT);
  if (wanted != connection.events) {
    connection.events = wanted;
    epoll_event event{wanted, {.u64 = number}};
    epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.socket.get(), &event);
  }
}

void StoreServer::drop(std::uint64_t number) noexcept {
  const auto found = connections_.find(number);
  if (found == connections_.end()) {
    return;
  }
  Connection& connection = found->second;
  if (const auto waiting = waiting_.find(connection.waits_for); waiting != waiting_.end()) {
    waiting->second.erase(number);
    if (waiting->second.empty()) {
      waiting_.erase(waiting);
    }
  }
  received_ -= connection.received.size();
  unauthenticated_.erase(number);
  connections_.erase(found);
}

}  // namespace gradientflow::transport

#include "engine.hpp"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <system_error>
#include <utility>

#include "../../base/waits.hpp"
#include "tcp_endpoint.hpp"

namespace gradientflow::transport::tcp {
namespace {

using namespace std::chrono_literals;

constexpr int found_at_once = 64;
constexpr auto look_every = 250ms;
constexpr auto longest_handover = 1ms;
constexpr auto in_between_waits = 5ms;
constexpr auto longest_unpolled = 1ms;  // longest time between polls, while only single requests are tested
constexpr std::size_t spill_bytes = std::size_t{64} << 10;

Descriptor made(int descriptor, const char* what) {
  if (descriptor < 0) {
    throw system_error(std::string("cannot make ") + what, errno);
  }
  return Descriptor(descriptor);
}

Descriptor listen_at(const SocketAddress& address) {
  Descriptor socket = made(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "a socket");
  if (bind(socket.get(), address.get(), address.length()) != 0 || listen(socket.get(), SOMAXCONN) != 0) {
    throw system_error("cannot listen at " + address.text(), errno);
  }
  return socket;
}

}  // namespace

// Handler of forks, which waits until no engine is being changed. In the forked process, the copies of all sockets are
// closed.
struct Forks {
  std::mutex mutex;
  std::vector<Engine*> engines;

  static Forks& all() {
    static Forks forks;
    static const int watched = pthread_atfork(&before, &after, &after);
    static_cast<void>(watched);
    return forks;
  }

 private:
  static void before() {
    all().mutex.lock();
    for (Engine* const each : all().engines) {
      each->mutex_.lock();
    }
  }
  static void after() {
    for (Engine* const each : all().engines) {
      each->mutex_.unlock();
    }
    all().mutex.unlock();
  }
};

std::shared_ptr<Network> Network::listen(const Options& options) { return std::make_shared<Engine>(options); }

Engine::Engine(const Options& options)
    : options_(options),
      process_(getpid()),
      listener_(listen_at(numeric_address(options.address, 0))),
      epoll_(made(epoll_create1(EPOLL_CLOEXEC), "an epoll")),
      alarm_(made(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "an eventfd")),
      address_(SocketAddress::of_socket(listener_.get())),
      spill_(spill_bytes) {
  if (!set_congestion(listener_.get())) {
    const std::string why = std::generic_category().message(errno);
    throw Error(ErrorKind::value, "the congestion control " + options.congestion +
                                      " (GRADIENTFLOW_CONGESTION) cannot be had; see "
                                      "net.ipv4.tcp_allowed_congestion_control: " +
                                      why);
  }
  epoll_event event{EPOLLIN, {.ptr = &watched_alarm_}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, alarm_.get(), &event);
  Forks& forks = Forks::all();
  const std::lock_guard lock(forks.mutex);
  forks.engines.push_back(this);
}

Engine::~Engine() {
  {
    Forks& forks = Forks::all();
    const std::lock_guard lock(forks.mutex);
    std::erase(forks.engines, this);
  }
  if (!is_forked()) {
    leave();
  }
}

bool Engine::is_forked() const noexcept { return getpid() != process_; }

std::string Engine::address() const { return address_.text(); }

std::unique_ptr<Endpoint> Engine::join(int rank, std::vector<std::string> addresses, const Token& token) {
  std::vector<int> everybody(addresses.size());
  std::iota(everybody.begin(), everybody.end(), 0);
  std::uint64_t id = 0;
  std::memcpy(&id, token.data(), sizeof id);
  return join(rank, std::move(addresses), token, std::move(everybody), id);
}

std::unique_ptr<Endpoint> Engine::join(int rank, std::vector<std::string> addresses, const Token& token,
                                       std::vector<int> members, std::uint64_t id) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(has_joined_, true)) {
      throw Error(ErrorKind::internal, "a network has been joined twice");
    }
    rank_ = rank;
    token_ = token;
    for (std::string& each : addresses) {
      add_peer(std::move(each));
    }
    epoll_event event{EPOLLIN, {.ptr = &watched_listener_}};
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &event);
  }
  return std::make_unique<TcpEndpoint>(shared_from_this(), std::move(members), id);
}

void Engine::add_peer(std::string address) {
  if (!address.empty()) {
    static_cast<void>(numeric_address(address));  // throws if it is malformed
  }
  Peer& added = peers_.emplace_back();
  added.state = address.empty() ? PeerState::dead : PeerState::alive;
  added.how = "it never came";
  added.address = std::move(address);
}

int Engine::ranks() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(peers_.size());
}

void Engine::append(int first, std::span<const std::string> addresses) {
  const std::lock_guard lock(mutex_);
  if (peers_.size() > static_cast<std::size_t>(first)) {
    throw Error(ErrorKind::internal, "a rank of the job is given twice");
  }
  while (peers_.size() < static_cast<std::size_t>(first)) {
    add_peer("");
  }
  for (const std::string& each : addresses) {
    add_peer(each);
  }
}

std::vector<std::string> Engine::addresses() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> found;
  for (const Peer& each : peers_) {
    found.push_back(each.address);
  }
  return found;
}

void Engine::handle(Watched& watched, std::uint32_t events) {
  switch (watched.watched_kind) {
    case Watched::Kind::listener:
      accept_some();
      break;
    case Watched::Kind::alarm: {
      std::uint64_t count = 0;
      static_cast<void>(::read(alarm_.get(), &count, sizeof count));
      break;
    }
    case Watched::Kind::unauthenticated:
      greet(static_cast<Unauthenticated&>(watched));
      break;
    case Watched::Kind::connection: {
      auto& connection = static_cast<Connection&>(watched);
      if (!connection.is_lost && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
        read(connection);
      }
      if (!connection.is_lost && (events & EPOLLOUT) != 0) {
        flush(connection);
      }
      break;
    }
  }
}

// Role of the thread that is in epoll. It ends even when an exception is thrown.
class Engine::Polling {
 public:
  explicit Polling(Engine& engine) : engine_(engine) { engine_.is_polled_ = true; }
  Polling(const Polling&) = delete;
  Polling& operator=(const Polling&) = delete;
  ~Polling() {
    engine_.is_polled_ = false;
    engine_.polled_ = Clock::now();
    engine_.has_found_ = false;
    engine_.found_.notify_all();
  }

 private:
  Engine& engine_;
};

// One thread is in epoll at a time. The remaining threads wait until that thread has found something or leaves epoll;
// then the next one enters. A waiting thread replaces a background thread, which then stays away for a while, so that
// the two do not change places between the waits of one call.
void Engine::make_progress(std::chrono::milliseconds wait, bool in_background) {
  std::unique_lock lock(mutex_);
  const auto start = Clock::now();
  if (!in_background) {
    last_wait_ = start;
    if (is_slept_in_ && is_in_background_) {
      wake_sleeper();
      found_.wait_for(lock, longest_handover, [this] { return !is_polled_; });
    }
  }
  if (is_polled_ || (in_background && start - last_wait_ < in_between_waits)) {
    if (wait > 0ms) {
      ++waiting_;
      found_.wait_for(lock, wait);
      --waiting_;
    }
    return;
  }
  is_in_background_ = in_background;
  poll(lock, wait);
}

void Engine::poll(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds wait) {
  const Polling polling(*this);
  std::array<epoll_event, found_at_once> events;
  int found = 0;
  if (wait > 0ms) {
    is_slept_in_ = true;
    lock.unlock();
    found = epoll_wait(epoll_.get(), events.data(), found_at_once, static_cast<int>(wait.count()));
    lock.lock();
    is_slept_in_ = false;
  } else {
    found = epoll_wait(epoll_.get(), events.data(), found_at_once, 0);
  }
  for (int i = 0; i < found; ++i) {
    const epoll_event& event = events.at(static_cast<std::size_t>(i));
    handle(*static_cast<Watched*>(event.data.ptr), event.events);
  }
  if (const auto now = Clock::now(); now - looked_ > look_every) {
    looked_ = now;
    look_after_peers(now);
  }
  flush_queued();
  lost_.clear();
  ended_.clear();
}

void Engine::wake_sleeper() {
  const std::uint64_t one = 1;
  static_cast<void>(write(alarm_.get(), &one, sizeof one));
}

// Wakes sleeping threads if something has happened outside of make_progress.
void Engine::wake_waiters() {
  if (!std::exchange(has_found_, false)) {
    return;
  }
  if (is_slept_in_) {
    wake_sleeper();
  }
  if (waiting_ > 0) {
    found_.notify_all();
  }
}

void Engine::make_progress(int rank) {
  Peer& other = peer(rank);
  for (std::size_t i = 0; i < other.connections.size(); ++i) {  // NOLINT(modernize-loop-convert): reading changes them
    read(*other.connections[i]);
  }
  if (other.out != nullptr && other.out->has_to_send()) {
    flush(*other.out);
  }
  flush_queued();
}

// Sends queued output, as far as the system takes it; the rest is sent when there is room again.
void Engine::flush_queued() {
  while (!with_output_.empty()) {
    const int rank = with_output_.back();
    with_output_.pop_back();
    if (Connection* const out = peer(rank).out; out != nullptr && out->has_to_send() && !out->awaits_room) {
      flush(*out);
    }
  }
}

bool Engine::test(const Operation& operation) {
  if (operation.has_ended.load(std::memory_order_acquire)) {
    return true;
  }
  std::unique_lock lock(mutex_);
  const auto has_ended = [&] { return operation.has_ended.load(std::memory_order_relaxed); };
  if (!has_ended() && operation.peer != rank_) {
    make_progress(operation.peer);
  }
  if (!has_ended() && !is_polled_ && Clock::now() - polled_ > longest_unpolled) {
    poll(lock, 0ms);
  }
  wake_waiters();
  return has_ended();
}

// Reports whether messages have yet to leave, or to be fetched.
bool Engine::has_to_send() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const Peer& other) {
    return other.out != nullptr && (other.out->has_to_send() || !other.announced.empty());
  });
}

bool Engine::has_left() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& other) {
    int unacknowledged = 0;
    return other.state != PeerState::alive || other.out == nullptr ||
           (!other.out->has_to_send() && ioctl(other.out->descriptor(), SIOCOUTQ, &unacknowledged) == 0 &&
            unacknowledged == 0);
  });
}

// Sends all remaining output, and waits a while until it has been acknowledged, because a connection that is closed
// earlier may lose data.
void Engine::leave() noexcept {
  try {
    const auto deadline = Clock::now() + waits::leave.time();
    while (has_to_send() && Clock::now() < deadline) {
      make_progress(1ms);
    }
    {
      const std::lock_guard lock(mutex_);
      for (Peer& other : peers_) {
        if (other.out != nullptr) {
          other.out->put({.kind = Header::Kind::left});
          flush(*other.out);
        }
      }
    }
    while (!has_left() && Clock::now() < deadline) {
      make_progress(1ms);
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): no memory for the message
  }
  for (Peer& other : peers_) {
    for (const auto& [number, sending] : std::exchange(other.announced, {})) {
      end(sending);
    }
    std::vector<Sending*> unsent;
    for (const auto& connection : other.connections) {
      connection->take_unsent(unsent);
    }
    for (Sending* const sending : unsent) {
      end(sending);
    }
  }
}

}  // namespace gradientflow::transport::tcp

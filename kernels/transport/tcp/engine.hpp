// Connections of one process to all others of its job, and the messages that they carry.
//
// The engine has no thread of its own. A thread that waits for a message makes progress for all waiting threads of this
// process: one thread sleeps in epoll, and the rest wait until it has found something. The calling thread sends its
// messages itself, as far as the system takes them at once.
//
// When a process dies, its connections end, and its peers see this at once. A host is gone when its kernel has
// acknowledged nothing for a while, although there was something to acknowledge; where nothing is under way, the kernel
// sends probes. A process that is only stopped is not dead: its kernel still answers.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "../address.hpp"
#include "../descriptor.hpp"
#include "connection.hpp"
#include "inbox.hpp"
#include "network.hpp"
#include "probe.hpp"

namespace gradientflow::transport::tcp {

// Any thread may call. Ranks are numbered as in the job.
class Engine : public Network, public std::enable_shared_from_this<Engine>, private Connection::Receiver {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Engine(const Options& options);
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] std::string address() const override;
  [[nodiscard]] std::unique_ptr<Endpoint> join(int rank, std::vector<std::string> addresses,
                                               const Token& token) override;
  [[nodiscard]] std::unique_ptr<Endpoint> join(int rank, std::vector<std::string> addresses, const Token& token,
                                               std::vector<int> members, std::uint64_t id) override;

  // Returns the number of ranks that the job has had. append() adds later ranks, numbered from `first`, which is at
  // least this number.
  [[nodiscard]] int ranks() const;
  void append(int first, std::span<const std::string> addresses);
  [[nodiscard]] std::vector<std::string> addresses() const;  // address of each rank; empty if it never existed
  [[nodiscard]] const Token& token() const noexcept { return token_; }

  // Opens the inbox of a group of ranks, all of which know its id. Messages to a group that is not open yet are kept
  // for it; messages to a closed group are dropped.
  [[nodiscard]] Inbox* open(std::uint64_t group);
  void close(Inbox* inbox) noexcept;

  // Operations belong to the caller, which deletes them once they have ended, or gives them back with give_up().
  [[nodiscard]] Sending* send(const Inbox& inbox, int to, int tag, const void* data, std::size_t bytes,
                              bool until_taken);
  [[nodiscard]] Receiving* receive(Inbox& inbox, int from, int tag, void* data, std::size_t bytes);
  [[nodiscard]] std::unique_ptr<Arrived> next(Inbox& inbox, std::optional<int> tag);
  [[nodiscard]] Receiving* receive(std::unique_ptr<Arrived> arrived, void* data);
  void give_up(Sending* sending, Owner owner) noexcept;
  void give_up(Receiving* receiving) noexcept;
  void drop(std::unique_ptr<Arrived> arrived) noexcept;

  // Makes progress on this operation, without waiting. Returns true if it has ended.
  bool test(const Operation& operation);
  // Makes progress on all operations until something has happened, for at most `wait`. `in_background`: no caller waits
  // for this progress, so waiting threads come first.
  void make_progress(std::chrono::milliseconds wait, bool in_background = false);

  [[nodiscard]] bool has_deaths() const noexcept { return deaths_.load(std::memory_order_relaxed) > 0; }
  [[nodiscard]] std::optional<std::string> death_of(int rank);  // the reason, if it is dead
  // Returns the state of a lost rank, as far as it is known. Each call looks for more: poll it.
  [[nodiscard]] std::optional<Sign> sign_of(int rank, bool is_alive);
  void exclude(const Sign& lost);
  bool has_told_excluded();  // true once all excluded ranks that can be reached have been told
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] bool can_lose_ranks() const noexcept { return options_.can_lose_ranks; }
  [[nodiscard]] double timeout() const noexcept { return options_.timeout; }
  [[nodiscard]] bool is_forked() const noexcept;

 private:
  enum class PeerState : std::uint8_t {
    alive,
    left,         // closed in good order
    dead,         // its process has ended: no process listens at its address any more
    lost,         // its connection has ended
    silent,       // its host acknowledges nothing, or cannot be reached
    excluded,     // alive, and taken for dead by this rank
    excluded_us,  // alive, and has taken this rank for dead
  };

  struct Fetched {
    Receiving* receiving;  // nullptr: given up meanwhile
    std::size_t awaited;
    std::size_t there;
  };
  struct ExclusionNotice {
    Probe probe;
    Clock::time_point ends;  // time when it is given up
    bool needs_answer;
    bool has_arrived = false;
  };
  struct Peer {
    std::string address;
    std::vector<std::unique_ptr<Connection>> connections;
    Connection* out = nullptr;  // connection that this process sends through
    Connection* in = nullptr;   // connection that the peer sends through
    std::uint64_t credit = credit_of_a_peer;
    std::uint64_t used = 0;      // part of the peer's credit in use
    std::uint64_t consumed = 0;  // freed part of `used`, not yet given back
    std::uint64_t next_number = 1;
    std::uint64_t last_announced = 0;  // last number that the peer has announced
    std::unordered_map<std::uint64_t, Sending*> announced;
    std::unordered_map<std::uint64_t, Fetched> fetched;
    PeerState state = PeerState::alive;
    std::string how;
    Clock::time_point ended{};                // time when the peer was lost
    bool was_silent = false;                  // true if the peer was silent when it was lost
    std::unique_ptr<Probe> probe;             // probe that asks a lost peer if it lives
    bool is_excluded = false;                 // this rank has taken the peer for dead, and tells or has told it
    std::unique_ptr<ExclusionNotice> notice;  // notice to the peer that it is excluded, under way
  };

  struct Unauthenticated : Watched {
    explicit Unauthenticated(Descriptor accepted) : Watched(Kind::unauthenticated), socket(std::move(accepted)) {}
    Descriptor socket;
    std::array<std::byte, sizeof(Greeting)> bytes{};
    std::size_t count = 0;
  };

  // Called with mutex_ held. While a connection is being read, calls only queue their output; flush_queued() sends it.
  [[nodiscard]] Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] Connection* connection_to(int rank);  // nullptr: the rank is lost
  void add_peer(std::string address);
  void prepare(int socket) const;
  [[nodiscard]] bool set_congestion(int socket) const;  // true if the system accepts the setting
  Connection& add_connection(int rank, Descriptor socket, bool is_connecting);
  void watch(const Connection& connection, int operation);
  void flush(Connection& connection);
  bool read(Connection& connection);  // true if more may be there
  void drain(Connection& connection);
  void handle(Watched& watched, std::uint32_t events);
  bool accept_some();           // true if more may come
  void accept_and_greet_all();  // accepts and greets all that have come so far
  void greet(Unauthenticated& unauthenticated);
  void adopt(Unauthenticated& unauthenticated, const Greeting& greeting);
  void lose(Connection& connection, const std::string& how, int code = 0);
  [[nodiscard]] static PeerState state_of(int code) noexcept;
  void end_peer(int rank, PeerState state, const std::string& how);
  [[nodiscard]] std::string loss_text(int rank) const;
  [[nodiscard]] Error loss(int rank) const { return {ErrorKind::peer, loss_text(rank)}; }
  [[nodiscard]] Greeting greeting_to(int rank, Greeting::Purpose purpose = Greeting::Purpose::connect) const;
  void probe_lost_rank(int rank);
  [[nodiscard]] bool has_told(Peer& other) const;
  void look_after_peers(Clock::time_point now);
  [[nodiscard]] bool is_silent(Connection& connection, Clock::time_point now) const;
  [[nodiscard]] bool is_host_silent(int rank, Clock::time_point now) const;
  [[nodiscard]] Clock::time_point last_chance_of(int rank, Clock::time_point now) const;
  void connect_to_awaited();
  void wake_waiters();  // wakes waiting threads
  void wake_sleeper();

  void take_header(Connection& from, const Header& header) override;
  void take_landed(Connection& from) override;
  void take_message(Connection& from, const Header& header);
  void take_announcement(int from, const Header& header);
  void take_fetch(Connection& from, const Header& header);
  void take_piece(Connection& from, const Header& header);
  void give_credit(int rank, std::size_t bytes);
  [[nodiscard]] Inbox* inbox_of(std::uint64_t group);
  void fill(Receiving& receiving, std::unique_ptr<Arrived> arrived);
  void put_urgent(int rank, const Header& header);
  void discard(std::unique_ptr<Arrived> arrived);
  void send_to_self(const Inbox& inbox, Sending* sending, int tag, bool until_taken);
  void poll(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds wait);
  void make_progress(int rank);
  void note_output(int rank) { with_output_.push_back(rank); }
  void flush_queued();
  void end(Sending* sending, std::optional<Error> error = {});
  void end(Receiving& receiving, std::size_t bytes, std::optional<Error> error = {});
  void leave() noexcept;
  [[nodiscard]] bool has_to_send() const;
  [[nodiscard]] bool has_left() const;

  friend struct Forks;
  class Polling;

  Options options_;
  pid_t process_;
  Descriptor listener_, epoll_, alarm_;
  Watched watched_listener_{Watched::Kind::listener};
  Watched watched_alarm_{Watched::Kind::alarm};
  SocketAddress address_;
  int rank_ = 0;
  Token token_{};
  bool has_joined_ = false;

  mutable std::mutex mutex_;
  std::condition_variable found_;
  bool is_polled_ = false;         // a thread is in epoll, or about to handle its events
  bool is_slept_in_ = false;       // the thread in epoll sleeps
  bool is_in_background_ = false;  // polled in the background
  Clock::time_point last_wait_{};  // last wait outside of the background
  int waiting_ = 0;                // number of threads that wait for the thread in epoll
  bool has_found_ = false;         // something has ended or arrived since the last wake_waiters()
  std::deque<Peer> peers_;         // all ranks; may grow
  std::atomic<int> deaths_{0};
  std::unordered_map<std::uint64_t, std::unique_ptr<Inbox>> inboxes_;
  std::unordered_set<std::uint64_t> open_;    // inboxes that have been opened
  std::unordered_set<std::uint64_t> closed_;  // groups closed for good
  std::list<std::unique_ptr<Unauthenticated>> unauthenticated_;
  std::vector<std::unique_ptr<Connection>> lost_;        // kept until no event can point at them any more
  std::vector<std::unique_ptr<Unauthenticated>> ended_;  // likewise
  std::vector<Sending*> sent_;
  std::vector<int> with_output_;  // ranks with output since flush_queued()
  std::vector<std::byte> spill_;
  Clock::time_point looked_{};
  Clock::time_point polled_{};
};

}  // namespace gradientflow::transport::tcp

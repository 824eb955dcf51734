// All connections of one process to the others of its job, and the messages that they carry.
//
// Nothing here has a thread of its own. Whoever waits for a message carries everything on, for all that wait in this
// process: one of them sleeps in epoll, the others until it has found something. Messages are sent by the thread that
// sends them, as far as the system takes them at once.
//
// A process that dies ends its connections, which is seen at once. A host is gone when its kernel has acknowledged
// nothing for a while, although there was something to acknowledge; where nothing is under way, the kernel sends
// probes. A process that is only stopped is not dead: its kernel still answers.
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

// For any thread. Ranks are those of the job.
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

  // How many ranks the job has had. Ranks that come later get the numbers from `first` on, which is at least that.
  [[nodiscard]] int ranks() const;
  void append(int first, std::span<const std::string> addresses);
  [[nodiscard]] std::vector<std::string> addresses() const;  // by rank; empty where nobody has ever been
  [[nodiscard]] const Token& token() const noexcept { return token_; }

  // The inbox of a group of ranks, all of which know its id. Messages to a group that is not open yet are kept for it,
  // those to one that has been closed are dropped.
  [[nodiscard]] Inbox* open(std::uint64_t group);
  void close(Inbox* inbox) noexcept;

  // Operations belong to the caller, who gives them back with take() once they have ended, or with give_up().
  [[nodiscard]] Sending* send(const Inbox& inbox, int to, int tag, const void* data, std::size_t bytes,
                              bool until_taken);
  [[nodiscard]] Receiving* receive(Inbox& inbox, int from, int tag, void* data, std::size_t bytes);
  [[nodiscard]] std::unique_ptr<Arrived> next(Inbox& inbox, std::optional<int> tag);
  [[nodiscard]] Receiving* receive(std::unique_ptr<Arrived> arrived, void* data);
  void give_up(Sending* sending, Owner owner) noexcept;
  void give_up(Receiving* receiving) noexcept;
  void drop(std::unique_ptr<Arrived> arrived) noexcept;

  // Carries on what concerns this operation, without waiting. Returns whether it has ended.
  bool test(const Operation& operation);
  // Carries everything on, for at most so long, or until something has happened. `in_background`: for nobody who waits;
  // others come first.
  void carry_on(std::chrono::milliseconds wait, bool in_background = false);

  [[nodiscard]] bool has_deaths() const noexcept { return deaths_.load(std::memory_order_relaxed) > 0; }
  [[nodiscard]] std::optional<std::string> death_of(int rank);  // how that is known
  // What is known of a rank that is lost. Looks for more: to be asked again and again.
  [[nodiscard]] std::optional<Sign> sign_of(int rank, bool is_alive);
  void exclude(const Sign& lost);
  bool has_told_excluded();  // all of them, as far as they can be reached
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] bool can_lose_ranks() const noexcept { return options_.can_lose_ranks; }
  [[nodiscard]] double timeout() const noexcept { return options_.timeout; }
  [[nodiscard]] bool is_forked() const noexcept;

 private:
  enum class Fate : std::uint8_t {
    alive,
    left,      // in good order
    gone,      // its process: nobody listens at its address any more
    lost,      // its connection has ended
    silent,    // its host acknowledges nothing, or cannot be reached
    excluded,  // it was alive, and this rank has taken it for dead
    apart,     // it has taken this rank for dead
  };

  struct Fetched {
    Receiving* receiving;  // nullptr: given up meanwhile
    std::size_t awaited;
    std::size_t there;
  };
  struct Word {
    Probe probe;
    Clock::time_point ends;  // then it is given up
    bool needs_answer;
    bool has_arrived = false;
  };
  struct Peer {
    std::string address;
    std::vector<std::unique_ptr<Connection>> connections;
    Connection* out = nullptr;  // the one that this process sends through
    Connection* in = nullptr;   // and the one that the peer does
    std::uint64_t credit = credit_of_a_peer;
    std::uint64_t used = 0;      // of the peer's credit
    std::uint64_t consumed = 0;  // of that, and not yet given back
    std::uint64_t next_number = 1;
    std::uint64_t last_announced = 0;  // by the peer
    std::unordered_map<std::uint64_t, Sending*> announced;
    std::unordered_map<std::uint64_t, Fetched> fetched;
    Fate fate = Fate::alive;
    std::string how;
    Clock::time_point ended{};     // when it was lost
    bool was_silent = false;       // then
    std::unique_ptr<Probe> probe;  // of one that is lost
    bool is_excluded = false;      // this rank has taken it for dead, and tells it, or has told it
    std::unique_ptr<Word> word;    // under way
  };

  struct Stranger : Watched {
    explicit Stranger(Descriptor accepted) : Watched(Kind::stranger), socket(std::move(accepted)) {}
    Descriptor socket;
    std::array<std::byte, sizeof(Greeting)> bytes{};
    std::size_t count = 0;
  };

  // All with mutex_ held. What is called while a connection is read only queues what is to be sent: settle() sends it.
  [[nodiscard]] Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] Connection* connection_to(int rank);  // nullptr: the rank is lost
  void add_peer(std::string address);
  void prepare(int socket) const;
  [[nodiscard]] bool set_congestion(int socket) const;  // whether the system takes it
  Connection& add_connection(int rank, Descriptor socket, bool is_connecting);
  void watch(const Connection& connection, int operation);
  void flush(Connection& connection);
  bool read(Connection& connection);  // whether more may be there
  void drain(Connection& connection);
  void handle(Watched& watched, std::uint32_t events);
  bool accept_some();  // whether more may come
  void meet_all();     // that have come so far
  void greet(Stranger& stranger);
  void adopt(Stranger& stranger, const Greeting& greeting);
  void lose(Connection& connection, const std::string& how, int code = 0);
  [[nodiscard]] static Fate fate_of(int code) noexcept;
  void end_peer(int rank, Fate fate, const std::string& how);
  [[nodiscard]] std::string loss_text(int rank) const;
  [[nodiscard]] Error loss(int rank) const { return {ErrorKind::peer, loss_text(rank)}; }
  [[nodiscard]] Greeting greeting_to(int rank, Greeting::Purpose purpose = Greeting::Purpose::connect) const;
  void find_out(int rank);
  [[nodiscard]] bool has_told(Peer& other) const;
  void look_after_peers(Clock::time_point now);
  [[nodiscard]] bool is_silent(Connection& connection, Clock::time_point now) const;
  [[nodiscard]] bool is_host_silent(int rank, Clock::time_point now) const;
  [[nodiscard]] Clock::time_point last_chance_of(int rank, Clock::time_point now) const;
  void connect_to_awaited();
  void rouse();  // threads that wait
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
  void carry_on(int rank);
  void note_output(int rank) { with_output_.push_back(rank); }
  void settle();
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
  bool is_polled_ = false;         // a thread is in epoll, or about to handle what it has found
  bool is_slept_in_ = false;       // and sleeps there
  bool is_for_nobody_ = false;     // in the background
  Clock::time_point last_wait_{};  // that was not in the background
  int waiting_ = 0;                // threads that wait for another to find something
  bool has_found_ = false;         // something has ended or arrived since the last rouse()
  std::deque<Peer> peers_;         // by rank; more may come
  std::atomic<int> deaths_{0};
  std::unordered_map<std::uint64_t, std::unique_ptr<Inbox>> inboxes_;
  std::unordered_set<std::uint64_t> open_;    // those of inboxes_ that have been opened
  std::unordered_set<std::uint64_t> closed_;  // for good
  std::list<std::unique_ptr<Stranger>> strangers_;
  std::vector<std::unique_ptr<Connection>> lost_;  // until no event can point at them any more
  std::vector<std::unique_ptr<Stranger>> gone_;    // the same
  std::vector<Sending*> sent_;
  std::vector<int> with_output_;  // ranks, since settle()
  std::vector<std::byte> spill_;
  Clock::time_point looked_{};
  Clock::time_point polled_{};
};

}  // namespace gradientflow::transport::tcp

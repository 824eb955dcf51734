// What moves messages between the ranks of a communicator: the one interface under Messages and Mailbox. MPI is behind
// it (mpi/), or connections of our own (tcp/).
//
// Messages with one tag between two ranks are received in the order in which they were sent. Every call may be made by
// any thread, if the limits say so; none blocks but the set-up calls and pause().
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../base/error.hpp"
#include "patience.hpp"
#include "standing.hpp"

namespace gradientflow::transport {

class Endpoint;

// What is known of a message before it is received.
struct Envelope {
  int source = -1;
  int tag = -1;
  std::size_t bytes = 0;

  static constexpr int any_source = -1;
  [[nodiscard]] bool is_from(int rank) const noexcept { return rank == any_source || rank == source; }
};

// Of memory that is sent or received into: kept until the transport is done with it, perhaps for ever.
using Owner = std::shared_ptr<const void>;

// A send or receive under way, which its endpoint must outlive. If it is destroyed before it has ended, it is given up.
class Request {
 public:
  enum class Kind : std::uint8_t { send, receive };

  Request() = default;
  Request(Endpoint& endpoint, std::uint64_t handle, int peer, Kind kind)
      : endpoint_(&endpoint), handle_(handle), peer_(peer), kind_(kind) {}
  Request(Request&& other) noexcept
      : endpoint_(std::exchange(other.endpoint_, nullptr)),
        handle_(other.handle_),
        peer_(other.peer_),
        kind_(other.kind_) {}
  Request& operator=(Request&& other) noexcept {
    if (this != &other) {
      give_up();
      endpoint_ = std::exchange(other.endpoint_, nullptr);
      handle_ = other.handle_;
      peer_ = other.peer_;
      kind_ = other.kind_;
    }
    return *this;
  }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  ~Request() { give_up(); }

  [[nodiscard]] bool under_way() const noexcept { return endpoint_ != nullptr; }
  [[nodiscard]] int peer() const noexcept { return peer_; }
  [[nodiscard]] Kind kind() const noexcept { return kind_; }

  // Forgets a receive, whose memory is not written to any more once this returns, if the endpoint can see to that. The
  // memory of a send is kept until it may go: by `owner`, or by a copy, or, if the endpoint can do neither, it must
  // stay for good (Endpoint::has_abandoned_requests). Without an owner, a message that has only been announced may be
  // withdrawn.
  void give_up(Owner owner = {}) noexcept;

  // For endpoints: what stands for the request there, and that it has ended.
  [[nodiscard]] std::uint64_t handle() const noexcept { return handle_; }
  void end() noexcept { endpoint_ = nullptr; }

 private:
  Endpoint* endpoint_ = nullptr;
  std::uint64_t handle_ = 0;
  int peer_ = -1;
  Kind kind_ = Kind::send;
};

// A message that nobody had posted a receive for, taken out of its endpoint, which must outlive it. If it is destroyed
// before it is received, it is discarded, and its sender need not wait.
class Arrival {
 public:
  Arrival(Endpoint& endpoint, std::uint64_t handle, const Envelope& envelope)
      : endpoint_(&endpoint), handle_(handle), envelope_(envelope) {}
  Arrival(Arrival&& other) noexcept
      : endpoint_(std::exchange(other.endpoint_, nullptr)), handle_(other.handle_), envelope_(other.envelope_) {}
  Arrival& operator=(Arrival&& other) = delete;
  Arrival(const Arrival&) = delete;
  Arrival& operator=(const Arrival&) = delete;
  ~Arrival();

  [[nodiscard]] const Envelope& envelope() const noexcept { return envelope_; }

  // For endpoints.
  [[nodiscard]] std::uint64_t handle() const noexcept { return handle_; }
  void end() noexcept { endpoint_ = nullptr; }

 private:
  Endpoint* endpoint_;
  std::uint64_t handle_;
  Envelope envelope_;
};

struct Limits {
  int tags = 0;                    // 0 to tags - 1
  std::size_t part_bytes = 0;      // large messages that cross travel best in parts of so many bytes; 0: whole
  int window = 16;                 // messages of one stream that a rank best has under way at once
  bool wakes = false;              // whether pause() returns as soon as something has come
  bool threads = true;             // whether several threads may call at once
  const char* thread_advice = "";  // the end of an error about a call for which they would have to
};

// Up to so many ranks, all may exchange messages with all others, where that makes an error clearer.
inline constexpr int few_ranks = 64;

// A rank with which nothing can be exchanged any more, because its process or host has died.
struct Death {
  int rank;
  std::string how = "has died";  // and perhaps more: "has died: the connection to 10.0.0.2:4123 has ended: ..."

  [[nodiscard]] std::string text() const { return "rank " + std::to_string(rank) + " " + how; }
};

// What a process has to know to become a rank of an endpoint.
struct Invitation {
  std::string token;                   // of the job
  std::vector<std::string> addresses;  // by rank of the job; empty where nobody has ever been
  std::vector<int> members;            // ranks of the job, by rank
  std::uint64_t id = 0;                // of the endpoint
};

// What an endpoint is for that is made where ranks have died: to find out who is left, to agree that all of these have
// set up a new one, and the new one itself.
enum class Stage : std::uint8_t { begin, agree, work };

// A transport, by the properties that its callers ask for.
struct Transport {
  std::string_view name;       // in settings and tables
  const char* end_notice;      // begins the error of a call after the transport has ended for the whole process
  bool is_mpi;                 // its messages are those of the MPI library
  std::size_t eager_segments;  // a message of so many segments is as fast without an agreement before it
};

inline constexpr Transport mpi_transport{"mpi", "MPI has been finalized", true, 1};
inline constexpr Transport tcp_transport{"tcp", "TCP has ended", false, 2};
inline constexpr std::array transports = {mpi_transport, tcp_transport};

// Throws Error(value).
[[nodiscard]] const Transport& transport_named(std::string_view name);

class Endpoint {
 public:
  using CheckPeers = std::function<void()>;

  Endpoint() = default;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  // The messages of an endpoint that has not been closed, and that may still be under way to it, are lost.
  virtual ~Endpoint() = default;

  [[nodiscard]] virtual const Transport& transport() const noexcept = 0;
  // One of the same ranks whose communicator the MPI library has: this one, or one that is kept beside it; or nullptr.
  [[nodiscard]] virtual const Endpoint* by_mpi() const noexcept { return kept_.get(); }
  // Keeps one over MPI. Returns the one that was kept before.
  std::unique_ptr<Endpoint> keep(std::unique_ptr<Endpoint> by_mpi) noexcept {
    return std::exchange(kept_, std::move(by_mpi));
  }
  // Why messages travel as they do; empty where there was nothing to choose.
  [[nodiscard]] const std::string& remark() const noexcept { return remark_; }
  void set_remark(const std::string& remark) { remark_ = remark; }
  [[nodiscard]] virtual Limits limits() const = 0;
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  // This process's rank in the whole job.
  [[nodiscard]] int job_rank() const noexcept { return job_rank_; }

  // Starts to send, or to receive a message of at most `bytes` bytes. The memory must stay until the request has ended.
  // `until_taken`: the send ends when its message has been received or taken, not as soon as its memory is free.
  [[nodiscard]] virtual Request send(int to, int tag, const void* data, std::size_t bytes,
                                     bool until_taken = false) = 0;
  [[nodiscard]] virtual Request receive(int from, int tag, void* data, std::size_t bytes) = 0;

  // The oldest message, of this tag if one is given, for which nobody has posted a receive; and the receive of it, for
  // as many bytes as it has.
  [[nodiscard]] virtual std::optional<Arrival> next(std::optional<int> tag = {}) = 0;
  [[nodiscard]] virtual Request receive(Arrival& arrival, void* data) = 0;

  // Carries everything on. Returns the bytes received (sent) once the request has ended, which it then has for good.
  // Throws, ending it, Error(peer) where the other rank has died, Error(mpi), Error(mismatch) where a message is longer
  // than its receive.
  [[nodiscard]] virtual std::optional<std::size_t> test(Request& request) = 0;

  // Whether a test could find that the request has ended, for whoever tests many, and carries everything on by next()
  // or pause(). Carries nothing on.
  [[nodiscard]] virtual bool may_have_ended(const Request& /*request*/) const noexcept { return true; }

  // Carries everything on and lets a little time pass, the more the longer the wait has lasted. Returns true from time
  // to time, for the caller to look for what can go wrong. Returns early where something has come.
  virtual bool pause(Patience& patience) = 0;

  virtual void give_up(Request& request, Owner owner) noexcept = 0;  // see Request
  virtual void discard(Arrival& arrival) noexcept = 0;               // see Arrival

  // The ranks that are known to have died, as far as the transport can tell.
  [[nodiscard]] virtual std::vector<Death> dead() = 0;

  // Whether the transport has ended for the whole process; then nothing of it may be called any more.
  [[nodiscard]] virtual bool has_ended() const noexcept = 0;
  void check_not_ended() const;      // throws Error(closed)
  void check_mpi_not_ended() const;  // likewise, about that of by_mpi(), if there is one

  // Every rank's `bytes` bytes, in rank order. Collective. For set-up and rare cases: it sends something to every rank.
  // `timeouts`: how many timeouts it may take, where the others may have to wait for something else before they come.
  // Throws Error(timeout) that names the missing ranks, Error(peer), Error(closed) after an interrupt.
  [[nodiscard]] virtual std::vector<std::byte> allgather(const void* mine, std::size_t bytes,
                                                         int timeouts = 1) const = 0;
  template <class T>
  [[nodiscard]] std::vector<T> allgather(const T& mine, int timeouts = 1) const {
    const std::vector<std::byte> raw = allgather(&mine, sizeof(T), timeouts);
    std::vector<T> all(static_cast<std::size_t>(size_));
    __builtin_memcpy(all.data(), raw.data(), raw.size());
    return all;
  }

  // An endpoint of the ranks with the same `color`, in the order of `key`; nullptr for a negative color. And one of the
  // same ranks, whose messages do not meet those of this one. Collective; all ranks get theirs or none does. Throws as
  // allgather does. `check_peers`: called several times a second, to throw where a rank is missing.
  [[nodiscard]] virtual std::unique_ptr<Endpoint> split(int color, int key, const CheckPeers& check_peers) const = 0;
  [[nodiscard]] virtual std::unique_ptr<Endpoint> duplicate() const = 0;

  // Whether the process of a rank lives, as far as is known otherwise.
  using IsAlive = std::function<bool(int)>;

  // For those who go on without ranks that have died, see recovery/.
  [[nodiscard]] virtual bool can_lose_ranks() const { return false; }
  // An endpoint of `ranks`, this one among them, in this order. Not collective; for each stage once.
  [[nodiscard]] virtual std::unique_ptr<Endpoint> among(std::span<const int> ranks, Stage stage) const;
  // The ranks that are lost, as far as it is known what has become of them. Looks for more: to be asked again and
  // again.
  [[nodiscard]] virtual std::vector<Sign> signs(const IsAlive& /*is_alive*/) { return {}; }
  // Takes a rank for dead: nothing is exchanged with it any more, in the whole job. It is told so, unless its process
  // has ended or it has taken this rank for dead.
  virtual void exclude(const Sign& /*lost*/) {}
  // Whether all that have been excluded have been told, or cannot be reached: to be asked again and again. Then
  // signs() finds each of them that has told this rank the same before.
  [[nodiscard]] virtual bool has_told_excluded() { return true; }

  // For those who let others in, see recovery/. How many ranks the whole job has had, as far as this process knows.
  [[nodiscard]] virtual int job_size() const { return 0; }
  // Takes in processes that listen at `addresses`, as ranks of the job from `first` on, which is at least job_size() on
  // every rank. Not collective. Returns an endpoint of the same ranks and, behind them, of these.
  [[nodiscard]] virtual std::unique_ptr<Endpoint> widen(std::span<const std::string> addresses, int first) const;
  // What they have to know to make it, too. Only over TCP.
  [[nodiscard]] virtual Invitation invitation() const;

  // Before it is destroyed: no message is sent or received any more. A last message with `tag` is still to come from
  // each of `awaited`. `has_lost_messages`: some that have come were never received.
  virtual void close(std::vector<int> awaited, int tag, bool has_lost_messages) noexcept = 0;
  // After that, once no request or arrival of it is left: closes sockets that no other endpoint needs.
  virtual void let_go() noexcept {}

  // Whether memory of a request that was given up may still be read or written.
  [[nodiscard]] bool has_abandoned_requests() const noexcept {
    return has_abandoned_requests_.load() || (kept_ != nullptr && kept_->has_abandoned_requests());
  }

  // Makes a wait, now or later, throw Error(closed).
  void interrupt() noexcept {
    interrupted_.store(true);
    if (kept_ != nullptr) {
      kept_->interrupt();
    }
  }
  [[nodiscard]] bool interrupted() const noexcept { return interrupted_.load(); }

 protected:
  void place(int rank, int size, int job_rank) noexcept {
    rank_ = rank;
    size_ = size;
    job_rank_ = job_rank;
  }
  void note_abandoned_request() const noexcept { has_abandoned_requests_.store(true); }

 private:
  int rank_ = 0;
  int size_ = 1;
  int job_rank_ = 0;
  std::unique_ptr<Endpoint> kept_;
  std::string remark_;
  std::atomic<bool> interrupted_{false};
  mutable std::atomic<bool> has_abandoned_requests_{false};
};

inline void Request::give_up(Owner owner) noexcept {
  if (endpoint_ != nullptr) {
    endpoint_->give_up(*this, std::move(owner));
    endpoint_ = nullptr;
  }
}

inline Arrival::~Arrival() {
  if (endpoint_ != nullptr) {
    endpoint_->discard(*this);
  }
}

}  // namespace gradientflow::transport

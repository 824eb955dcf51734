// Transport of messages between the ranks of a communicator: the one interface under Messages and Mailbox. The
// implementation is MPI (mpi/) or our own connections (tcp/).
//
// Messages with one tag between two ranks are received in the order in which they were sent. Any thread may call, if
// Limits::threads is true. Only the set-up calls and pause() block.
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
#include "liveness.hpp"
#include "patience.hpp"

namespace gradientflow::transport {

class Endpoint;

// Source, tag and size of a message, known before it is received.
struct Envelope {
  int source = -1;
  int tag = -1;
  std::size_t bytes = 0;

  static constexpr int any_source = -1;
  [[nodiscard]] bool is_from(int rank) const noexcept { return rank == any_source || rank == source; }
};

// Owner of memory that is sent or received into. The owner is kept until the transport is done with this memory,
// perhaps forever.
using Owner = std::shared_ptr<const void>;

// A send or receive under way, which its endpoint must outlive. Destroying it early gives it up.
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

  // Abandons the request. If the endpoint can prevent it, a receive's memory is not written to any more. A send's
  // memory may still be read: the endpoint keeps `owner`, or copies the data. If the endpoint can do neither, the
  // memory must stay for good (Endpoint::has_abandoned_requests). Without an owner, a message that was only announced
  // may be withdrawn.
  void give_up(Owner owner = {}) noexcept;

  // Used by endpoints: their handle of the request, and the mark that it has ended.
  [[nodiscard]] std::uint64_t handle() const noexcept { return handle_; }
  void end() noexcept { endpoint_ = nullptr; }

 private:
  Endpoint* endpoint_ = nullptr;
  std::uint64_t handle_ = 0;
  int peer_ = -1;
  Kind kind_ = Kind::send;
};

// A message without a posted receive, taken out of its endpoint, which must outlive it. Destroying it before it is
// received discards the message; its sender need not wait.
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

  // Used by endpoints.
  [[nodiscard]] std::uint64_t handle() const noexcept { return handle_; }
  void end() noexcept { endpoint_ = nullptr; }

 private:
  Endpoint* endpoint_;
  std::uint64_t handle_;
  Envelope envelope_;
};

struct Limits {
  int tags = 0;                    // valid tags are 0 to tags - 1
  std::size_t part_bytes = 0;      // large messages in both directions travel best in parts of this size; 0: whole
  int window = 16;                 // best number of messages of one stream that a rank has under way at once
  bool wakes = false;              // pause() returns as soon as something has arrived
  bool threads = true;             // several threads may call at once
  const char* thread_advice = "";  // end of the error about a call that needs several threads
};

// Largest number of ranks that may send messages all to all merely for a clearer error.
inline constexpr int few_ranks = 64;

// A rank that cannot exchange messages any more, because its process or host has died.
struct Death {
  int rank;
  std::string how = "has died";  // perhaps with details: "has died: the connection to 10.0.0.2:4123 has ended: ..."

  [[nodiscard]] std::string text() const { return "rank " + std::to_string(rank) + " " + how; }
};

// Everything a process must know to become a rank of an endpoint.
struct Invitation {
  std::string token;                   // token of the job
  std::vector<std::string> addresses;  // address of each rank of the job; empty for a rank that never existed
  std::vector<int> members;            // ranks in the job, by rank
  std::uint64_t id = 0;                // id of the endpoint
};

// Purpose of an endpoint made after ranks have died. begin: to find out which ranks are left. agree: to agree that all
// of these have set up a new endpoint. work: the new endpoint itself.
enum class Stage : std::uint8_t { begin, agree, work };

// A transport, by the properties that its callers ask for.
struct Transport {
  std::string_view name;       // name in settings and tables
  const char* end_notice;      // start of the error about a call after the transport has ended for the whole process
  bool is_mpi;                 // its messages go through the MPI library
  std::size_t eager_segments;  // tensors of up to this many segments travel with the agreement between two nodes
};

inline constexpr Transport mpi_transport{"mpi", "MPI has been finalized", true, 1};
inline constexpr Transport tcp_transport{"tcp", "TCP has ended", false, 2};
inline constexpr std::array transports = {mpi_transport, tcp_transport};

// Returns the transport with this name. Throws Error(value).
[[nodiscard]] const Transport& transport_named(std::string_view name);

class Endpoint {
 public:
  using CheckPeers = std::function<void()>;

  Endpoint() = default;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  // If the endpoint was not closed, messages still under way to it are lost.
  virtual ~Endpoint() = default;

  [[nodiscard]] virtual const Transport& transport() const noexcept = 0;
  // Returns the endpoint of the same ranks over the MPI library: this endpoint, the endpoint kept beside it, or
  // nullptr.
  [[nodiscard]] virtual const Endpoint* by_mpi() const noexcept { return kept_.get(); }
  // Keeps an endpoint over MPI beside this one. Returns the previous one.
  std::unique_ptr<Endpoint> keep(std::unique_ptr<Endpoint> by_mpi) noexcept {
    return std::exchange(kept_, std::move(by_mpi));
  }
  // Returns why this transport was chosen; empty where there was no choice.
  [[nodiscard]] const std::string& remark() const noexcept { return remark_; }
  void set_remark(const std::string& remark) { remark_ = remark; }
  [[nodiscard]] virtual Limits limits() const = 0;
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  // Returns this process's rank in the whole job.
  [[nodiscard]] int job_rank() const noexcept { return job_rank_; }

  // Starts a send, or a receive of a message of at most `bytes` bytes. The memory must stay until the request has
  // ended. `until_taken`: the send ends when its message has been received or taken, not as soon as its memory is free.
  [[nodiscard]] virtual Request send(int to, int tag, const void* data, std::size_t bytes,
                                     bool until_taken = false) = 0;
  [[nodiscard]] virtual Request receive(int from, int tag, void* data, std::size_t bytes) = 0;

  // Takes out the oldest message for which no receive was posted; with `tag`, the oldest message of this tag. receive()
  // then receives all of its bytes.
  [[nodiscard]] virtual std::optional<Arrival> next(std::optional<int> tag = {}) = 0;
  [[nodiscard]] virtual Request receive(Arrival& arrival, void* data) = 0;

  // Drives all transfers. Returns the bytes received or sent once the request has ended for good. An error ends the
  // request, too: Error(peer) if the peer has died, Error(mpi), or Error(mismatch) if a message is longer than its
  // receive.
  [[nodiscard]] virtual std::optional<std::size_t> test(Request& request) = 0;

  // Reports whether test() might find the request ended, without driving transfers. For callers that test many
  // requests, and drive transfers by next() or pause().
  [[nodiscard]] virtual bool may_have_ended(const Request& /*request*/) const noexcept { return true; }

  // Drives all transfers and lets a little time pass, more the longer the wait has lasted. Returns true from time to
  // time, for the caller to look for failures. Returns early if a message has arrived.
  virtual bool pause(Patience& patience) = 0;

  virtual void give_up(Request& request, Owner owner) noexcept = 0;  // see Request
  virtual void discard(Arrival& arrival) noexcept = 0;               // see Arrival

  // Returns the ranks known to have died, as far as the transport can tell.
  [[nodiscard]] virtual std::vector<Death> dead() = 0;

  // Reports whether the transport has ended for the whole process; then it must not be called any more.
  [[nodiscard]] virtual bool has_ended() const noexcept = 0;
  void check_not_ended() const;      // throws Error(closed)
  void check_mpi_not_ended() const;  // the same for the endpoint of by_mpi(), if it exists

  // Gathers `bytes` bytes of every rank, in rank order. Collective. For set-up and rare cases: it sends to every rank.
  // `timeouts`: limit of its duration, in timeouts, because ranks may have to wait for something else first. Throws
  // Error(timeout) with the missing ranks, Error(peer), or Error(closed) after an interrupt.
  [[nodiscard]] virtual std::vector<std::byte> allgather(const void* mine, std::size_t bytes,
                                                         int timeouts = 1) const = 0;
  template <class T>
  [[nodiscard]] std::vector<T> allgather(const T& mine, int timeouts = 1) const {
    const std::vector<std::byte> raw = allgather(&mine, sizeof(T), timeouts);
    std::vector<T> all(static_cast<std::size_t>(size_));
    __builtin_memcpy(all.data(), raw.data(), raw.size());
    return all;
  }

  // split() returns an endpoint of the ranks with the same `color`, ordered by `key`; nullptr for a negative color.
  // duplicate() returns an endpoint of the same ranks with separate messages. Both are collective: either all ranks get
  // their endpoint, or none does. Both throw as allgather does. `check_peers` is called several times a second, and
  // throws if a rank is missing.
  [[nodiscard]] virtual std::unique_ptr<Endpoint> split(int color, int key, const CheckPeers& check_peers) const = 0;
  [[nodiscard]] virtual std::unique_ptr<Endpoint> duplicate() const = 0;

  // Liveness of a rank's process, as known from elsewhere.
  using IsAlive = std::function<bool(int)>;

  // Calls for continuing without dead ranks, see recovery/.
  [[nodiscard]] virtual bool can_lose_ranks() const { return false; }
  // Returns an endpoint of `ranks`, this one among them, in this order. Not collective; call it once for each stage.
  [[nodiscard]] virtual std::unique_ptr<Endpoint> among(std::span<const int> ranks, Stage stage) const;
  // Returns the lost ranks, as far as their fate is known. Each call looks for more of them: poll it.
  [[nodiscard]] virtual std::vector<Sign> signs(const IsAlive& /*is_alive*/) { return {}; }
  // Takes a rank for dead: nothing is exchanged with it any more, in the whole job. Tells that rank, unless its process
  // has ended or has taken this rank for dead.
  virtual void exclude(const Sign& /*lost*/) {}
  // Reports whether each excluded rank has been told, or cannot be reached: poll it. Once it is true, signs() finds
  // each excluded rank that had excluded this rank before.
  [[nodiscard]] virtual bool has_told_excluded() { return true; }

  // Calls for admitting ranks, see recovery/. Returns the number of ranks that the job has had, as far as this process
  // knows.
  [[nodiscard]] virtual int job_size() const { return 0; }
  // Admits the processes that listen at `addresses`. Their ranks in the job begin at `first`, which is at least
  // job_size() on every rank. Not collective. Returns an endpoint of the same ranks, followed by the new ranks.
  [[nodiscard]] virtual std::unique_ptr<Endpoint> widen(std::span<const std::string> addresses, int first) const;
  // Returns everything that new processes must know to make the same endpoint. Only over TCP.
  [[nodiscard]] virtual Invitation invitation() const;

  // Ends all sends and receives. Call it before the destructor. `awaited`: ranks from which a last message, with `tag`,
  // is still to come. `has_lost_messages`: some messages were never received.
  virtual void close(std::vector<int> awaited, int tag, bool has_lost_messages) noexcept = 0;
  // Closes sockets that no other endpoint needs. Call it after close(), once no request or arrival is left.
  virtual void release_sockets() noexcept {}

  // Reports whether memory of an abandoned request may still be read or written.
  [[nodiscard]] bool has_abandoned_requests() const noexcept {
    return has_abandoned_requests_.load() || (kept_ != nullptr && kept_->has_abandoned_requests());
  }

  // Makes the current or next wait throw Error(closed).
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

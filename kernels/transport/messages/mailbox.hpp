// Messages that may come from anybody at any time, over an endpoint of their own.
//
// Every message that arrives is drawn from the endpoint at the next poll, from any rank, with any tag, so its
// source, tag and size are known before it is received. It goes to the oldest receive posted for it, or waits until one
// is posted, or until next() asks for it. So the endpoint never has a receive that would have to be cancelled, a
// message of another size than expected is an error that names both sizes, and the last message of a rank, its notice
// that it has closed, comes after everything else that it has sent.
//
// Between two ranks, messages with one tag are received in the order in which they were sent.
//
// A thread that waits makes progress on all messages of the mailbox; while none waits, the mailbox's own thread does,
// between naps of up to 5 ms. It starts with the first message, and sleeps while nothing is pending.
//
// A message may travel in parts, if the endpoint says that it pays (Limits::part_bytes); few of them are under way to a
// rank at a time.
//
// Inside a node, too, the endpoint carries the messages: MPI's shared memory transport is as fast as a direct read with
// a handshake. docs/architecture.md has the figures.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../../base/error.hpp"
#include "../endpoint.hpp"
#include "transfer.hpp"

namespace gradientflow::transport {

// For any thread.
class Mailbox {
 public:
  using Clock = std::chrono::steady_clock;
  using Deadline = std::optional<Clock::time_point>;
  static constexpr int any_source = Envelope::any_source;

  // A message that has been taken out of a mailbox, to be received once there is memory for it. If it is destroyed
  // instead, the message is discarded, and its sender need not wait.
  class Arrival {
   public:
    Arrival(transport::Arrival&& message, std::shared_ptr<Endpoint> endpoint, std::weak_ptr<Mailbox> mailbox)
        : envelope_(message.envelope()),
          endpoint_(std::move(endpoint)),
          message_(std::move(message)),
          mailbox_(std::move(mailbox)) {}
    Arrival(const Arrival&) = delete;
    Arrival& operator=(const Arrival&) = delete;
    ~Arrival();
    [[nodiscard]] const Envelope& envelope() const noexcept { return envelope_; }

   private:
    friend class Mailbox;
    Envelope envelope_;
    std::shared_ptr<Endpoint> endpoint_;
    std::optional<transport::Arrival> message_;  // until it is received
    std::weak_ptr<Mailbox> mailbox_;
  };

  // Not collective. `endpoint`: for this mailbox alone. `name`: what has been closed, in errors. `is_alive`: whether
  // the process of a rank lives, as far as that is known other than from the endpoint; called by any thread. Throws
  // Error(value) where several threads cannot use the endpoint.
  static std::shared_ptr<Mailbox> make(std::unique_ptr<Endpoint> endpoint, std::string name,
                                       std::function<bool(int rank)> is_alive);
  ~Mailbox();  // closes it, not orderly
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // Draws unused tags, from the upper end of those that the endpoint offers; draw_rest: all that are left. All ranks
  // must make the same draws. Throws Error(value) where too few are left.
  [[nodiscard]] Tags draw(std::int64_t count);
  [[nodiscard]] Tags draw_rest();

  // Starts to send `bytes` bytes, which must stay as they are until the transfer has ended. Throws Error(value),
  // Error(closed), Error(mpi), Error(system).
  [[nodiscard]] std::shared_ptr<Transfer> send(int to, std::int64_t tag, const void* data, std::size_t bytes,
                                               Owner owner, Route route = Route::whole);

  // Starts to receive a message of exactly `bytes` bytes from rank `from`, or from any. Throws as `send` does.
  [[nodiscard]] std::shared_ptr<Transfer> receive(int from, std::int64_t tag, void* data, std::size_t bytes,
                                                  Owner owner, Route route = Route::whole);

  // Takes the oldest message without a posted receive out of the mailbox, from rank `from` or any, with one of these
  // tags; receive(arrival) then receives it. Returns nothing where none comes by the deadline. Throws Error(peer) where
  // none can come any more, Error(value), Error(closed).
  [[nodiscard]] std::unique_ptr<Arrival> next(int from, const Tags& tags, const Deadline& deadline);
  [[nodiscard]] std::shared_ptr<Transfer> receive(Arrival& arrival, void* data, Owner owner);

  // The same without waiting: returns nothing where no message is there, also where none can come any more.
  [[nodiscard]] std::unique_ptr<Arrival> take(int from, const Tags& tags);
  [[nodiscard]] bool has(const Tags& tags) const;  // from any

  // Makes progress until done(), which may look into the mailbox, or the deadline. Returns whether it was done().
  bool until(const std::function<bool()>& done, const Deadline& deadline);

  // How many other ranks are known to have closed, given up or died; and the error, if any, why rank `rank` cannot take
  // part in `what` any more: the one that its transfers raise.
  [[nodiscard]] int losses() const;
  [[nodiscard]] std::optional<Error> loss_of(int rank, const std::string& what) const;
  [[nodiscard]] bool has_closed(int rank) const;  // orderly

  // Waits until the transfer has ended, or the deadline has passed. Returns whether it has ended.
  [[nodiscard]] bool ended_by(const Transfer& transfer, const Deadline& deadline);

  // Waits and throws as Transfer::check does; Error(timeout) if `seconds` pass first. The transfer then goes on, and
  // can be waited for again.
  void wait(const Transfer& transfer, std::optional<double> seconds = {});

  // The Error(timeout) of `wait`.
  [[nodiscard]] Error timeout_error(const Transfer& transfer, double seconds) const;

  // Makes progress, without waiting.
  void poll();

  // Ends a receive whose message has not come, with Error(closed). Returns whether it did.
  bool cancel(const std::shared_ptr<Transfer>& transfer);

  // Calls `then` once the transfer has ended, in the mailbox's thread, or in the one that closes it. Once for a
  // transfer.
  void when_ended(const std::shared_ptr<Transfer>& transfer, std::function<void()> then);

  // Gives up receives. If `orderly`, waits a moment for messages under way and tells the others that this rank has
  // closed. Otherwise tells them that it has given up, and the reason, if any, which they then raise. Closing twice is
  // harmless: the second call waits for the first. Not collective.
  void close(bool orderly, const std::optional<Error>& reason = {}) noexcept;

  [[nodiscard]] int rank() const noexcept { return endpoint_->rank(); }
  [[nodiscard]] int size() const noexcept { return endpoint_->size(); }

 private:
  enum class State : std::int32_t { open, closed, failed, died };

  struct PeerState {  // what is known of another rank
    State state = State::open;
    Clock::time_point since{};
    std::optional<Error> reason = {};  // why it has given up, if it has said so
    std::string how = {};              // see Death
  };
  struct Notice {  // followed by the text of the reason, if there is one
    State state = State::failed;
    ErrorKind kind = ErrorKind::peer;
  };

  struct Incoming {
    std::shared_ptr<std::string> notice;
    Request request;
  };

  class Alarm;  // wakes the thread

  Mailbox(std::unique_ptr<Endpoint> endpoint, std::string name, std::function<bool(int)> is_alive);
  [[nodiscard]] bool is_forked() const noexcept;
  void check_process() const;
  [[nodiscard]] std::unique_lock<std::mutex> lock() const;
  void drop(Arrival& arrival);

  // All with mutex_ held.
  void check_usable() const;
  [[nodiscard]] std::unique_ptr<Arrival> find_arrival(int from, const Tags& tags);
  void check_rank(int rank, bool may_be_any) const;
  [[nodiscard]] std::shared_ptr<Transfer> make_transfer(Request::Kind kind, int peer, std::int64_t tag,
                                                        std::size_t bytes, Owner owner);
  [[nodiscard]] std::size_t parts_of(std::size_t bytes, Route route) const;
  [[nodiscard]] std::shared_ptr<Transfer> next_part(const std::shared_ptr<Transfer>& whole) const;
  void send_parts();
  void begin_receive(const std::shared_ptr<Transfer>& transfer, transport::Arrival& message);
  void start(const std::shared_ptr<Transfer>& transfer);
  void begin(const std::shared_ptr<Transfer>& transfer, transport::Arrival& message);
  void deliver(transport::Arrival message);
  void end(const std::shared_ptr<Transfer>& transfer, std::optional<Error> error = {});
  void end_part(const Transfer& part);
  [[nodiscard]] static Error given_up(const Transfer& transfer, const std::string& why);
  [[nodiscard]] bool test(const std::shared_ptr<Transfer>& transfer);
  void test_all();
  void end_lost();
  bool progress(bool look);
  bool draw_messages();
  void check_peers();
  void begin_notice(transport::Arrival& message);
  void read_notices();
  void read_notice(int source, const std::string& bytes);
  void note(int rank, State state, std::optional<Error> reason = {}, std::string how = {});
  void end_posted_in_vain();
  void end_all(const Error& error);
  [[nodiscard]] std::optional<Error> loss(int peer, const std::string& what) const;
  void tell(State state, const std::optional<Error>& reason);
  void attend(bool look);
  template <class Done>
  bool wait_until(const Deadline& deadline, Done done);
  void finish(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] bool work(std::chrono::nanoseconds& nap);
  static void thread_main(const std::weak_ptr<Mailbox>& mailbox, const std::shared_ptr<Alarm>& alarm);

  std::shared_ptr<Endpoint> endpoint_;  // the owner of which arrivals that have been taken share
  Limits limits_;
  std::string name_;
  std::function<bool(int)> is_alive_;
  int forks_;
  int notice_tag_;
  std::weak_ptr<Mailbox> self_;
  std::shared_ptr<Alarm> alarm_;

  mutable std::mutex mutex_;
  int tags_left_;
  std::vector<std::shared_ptr<Transfer>> posted_;     // receives whose message has not come, the oldest first
  std::list<transport::Arrival> arrived_;             // messages that nobody has asked for, the oldest first
  std::vector<std::shared_ptr<Transfer>> in_flight_;  // what the endpoint works on
  std::vector<std::shared_ptr<Transfer>> leaving_;    // sends of which parts have not begun, the oldest first
  std::vector<std::size_t> parts_under_way_;          // by rank
  std::vector<std::shared_ptr<Transfer>> lost_with_;  // whose ranks are gone, by their errors, not ended yet
  std::list<Incoming> incoming_;                      // notices under way
  std::vector<std::shared_ptr<Transfer>> ended_;      // since the last finish()
  std::vector<std::function<void()>> callbacks_;      // of those that have ended
  std::size_t taken_ = 0;                             // arrivals that have not been received
  std::vector<PeerState> peers_;                      // by rank
  std::vector<bool> known_peers_;                     // by rank: messages have passed, or are awaited
  int lost_ = 0;                                      // ranks that are no longer open
  bool has_thread_ = false;
  Clock::time_point looked_{};  // for ranks that are lost
  bool closed_ = false;
  std::atomic<bool> has_left_{false};  // the thread that closes it is done with the endpoint
  std::atomic<int> waiters_{0};
};

}  // namespace gradientflow::transport

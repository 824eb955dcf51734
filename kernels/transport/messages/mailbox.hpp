// Messages that may arrive from any rank at any time, over their own endpoint.
//
// Each poll draws from the endpoint all messages that have arrived, from any rank, with any tag. So the source, tag and
// size of a message are known before it is received. A message goes to the oldest receive posted for it, or waits until
// such a receive is posted, or until next() asks for the message. So the endpoint never has a receive that would have
// to be canceled, and a message of another size than expected is an error that names both sizes. The last message of a
// rank is its notice that it has closed.
//
// Between two ranks, messages with one tag are received in the order in which they were sent.
//
// A thread that waits makes progress on all messages of the mailbox; while none waits, the mailbox's own thread makes
// progress, between naps of up to 5 ms. This thread starts with the first message, and sleeps while nothing is pending.
//
// A message may travel in parts, if these are faster on the endpoint (Limits::part_bytes); few parts are under way to a
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

// Any thread may call.
class Mailbox {
 public:
  using Clock = std::chrono::steady_clock;
  using Deadline = std::optional<Clock::time_point>;
  static constexpr int any_source = Envelope::any_source;

  // A message taken out of a mailbox, to be received once there is memory for it. Destroying it instead discards the
  // message, and its sender need not wait.
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
    std::optional<transport::Arrival> message_;  // empty once received
    std::weak_ptr<Mailbox> mailbox_;
  };

  // Makes a mailbox. Not collective. `endpoint`: for this mailbox alone. `name`: used in errors about a closed mailbox.
  // `is_alive`: reports whether a rank's process lives, from a source other than the endpoint; called by any thread.
  // Throws Error(value) where several threads cannot use the endpoint.
  static std::shared_ptr<Mailbox> make(std::unique_ptr<Endpoint> endpoint, std::string name,
                                       std::function<bool(int rank)> is_alive);
  ~Mailbox();  // closes the mailbox, but not orderly
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // Draw unused tags, from the upper end of the endpoint's tags; draw_rest() draws all that are left. All ranks must
  // make the same draws. Throws Error(value) where too few are left.
  [[nodiscard]] Tags draw(std::int64_t count);
  [[nodiscard]] Tags draw_rest();

  // Starts to send `bytes` bytes, which must stay as they are until the transfer has ended. Throws Error(value),
  // Error(closed), Error(mpi), Error(system).
  [[nodiscard]] std::shared_ptr<Transfer> send(int to, std::int64_t tag, const void* data, std::size_t bytes,
                                               Owner owner, Route route = Route::whole);

  // Starts to receive a message of exactly `bytes` bytes from rank `from`, or from any. Throws as `send` does.
  [[nodiscard]] std::shared_ptr<Transfer> receive(int from, std::int64_t tag, void* data, std::size_t bytes,
                                                  Owner owner, Route route = Route::whole);

  // Takes the oldest message without a posted receive out of the mailbox, from rank `from` or any, with a tag in
  // `tags`; receive(arrival) then receives it. Returns nothing if no message comes by the deadline. Throws Error(peer)
  // if no message can come any more, Error(value), Error(closed).
  [[nodiscard]] std::unique_ptr<Arrival> next(int from, const Tags& tags, const Deadline& deadline);
  [[nodiscard]] std::shared_ptr<Transfer> receive(Arrival& arrival, void* data, Owner owner);

  // The same without waiting: returns nothing if no message is there, even if none can come any more.
  [[nodiscard]] std::unique_ptr<Arrival> take(int from, const Tags& tags);
  [[nodiscard]] bool has(const Tags& tags) const;  // has a message from any rank

  // Makes progress until done() returns true, or until the deadline. done() may look into the mailbox. Returns true if
  // done() did.
  bool until(const std::function<bool()>& done, const Deadline& deadline);

  // losses() returns the number of other ranks known to have closed, given up or died. loss_of() returns an error if
  // rank `rank` cannot take part in `what` any more: the error that transfers with this rank throw.
  [[nodiscard]] int losses() const;
  [[nodiscard]] std::optional<Error> loss_of(int rank, const std::string& what) const;
  [[nodiscard]] bool has_closed(int rank) const;  // true if the rank has closed orderly

  // Waits until the transfer has ended, or the deadline has passed. Returns true if it has ended.
  [[nodiscard]] bool ended_by(const Transfer& transfer, const Deadline& deadline);

  // Waits and throws as Transfer::check does; Error(timeout) if `seconds` pass first. The transfer then continues, and
  // can be waited for again.
  void wait(const Transfer& transfer, std::optional<double> seconds = {});

  // Returns the Error(timeout) of `wait`.
  [[nodiscard]] Error timeout_error(const Transfer& transfer, double seconds) const;

  // Makes progress, without waiting.
  void poll();

  // Ends a receive whose message has not come, with Error(closed). Returns true if it did.
  bool cancel(const std::shared_ptr<Transfer>& transfer);

  // Calls `then` once the transfer has ended, in the mailbox's thread, or in the thread that closes it. Call it once
  // for a transfer.
  void when_ended(const std::shared_ptr<Transfer>& transfer, std::function<void()> then);

  // Gives up receives. If `orderly`, waits a moment for messages under way and tells other ranks that this rank has
  // closed. Otherwise tells other ranks that this rank has given up, and the reason, if any: they then throw this
  // error. Closing twice is harmless: the second call waits for the first. Not collective.
  void close(bool orderly, const std::optional<Error>& reason = {}) noexcept;

  [[nodiscard]] int rank() const noexcept { return endpoint_->rank(); }
  [[nodiscard]] int size() const noexcept { return endpoint_->size(); }

 private:
  enum class PeerStatus : std::int32_t { open, closed, failed, died };

  struct PeerState {  // state of another rank, as known here
    PeerStatus state = PeerStatus::open;
    Clock::time_point since{};
    std::optional<Error> reason = {};  // reason why it has given up, if it gave one
    std::string how = {};              // details of its death, see Death
  };
  struct Notice {  // head of a notice; the text of the reason follows, if there is one
    PeerStatus state = PeerStatus::failed;
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

  // Called with mutex_ held.
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
  void note(int rank, PeerStatus state, std::optional<Error> reason = {}, std::string how = {});
  void end_unreceivable();
  void end_all(const Error& error);
  [[nodiscard]] std::optional<Error> loss(int peer, const std::string& what) const;
  void tell(PeerStatus state, const std::optional<Error>& reason);
  void attend(bool look);
  template <class Done>
  bool wait_until(const Deadline& deadline, Done done);
  void finish(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] bool work(std::chrono::nanoseconds& nap);
  static void thread_main(const std::weak_ptr<Mailbox>& mailbox, const std::shared_ptr<Alarm>& alarm);

  std::shared_ptr<Endpoint> endpoint_;  // also owned by arrivals that have been taken
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
  std::list<transport::Arrival> arrived_;             // messages not asked for yet, the oldest first
  std::vector<std::shared_ptr<Transfer>> in_flight_;  // transfers that the endpoint works on
  std::vector<std::shared_ptr<Transfer>> leaving_;    // sends with parts that have not begun, the oldest first
  std::vector<std::size_t> parts_under_way_;          // number of parts, by rank
  std::vector<std::shared_ptr<Transfer>> lost_with_;  // transfers whose ranks were lost, not ended yet
  std::list<Incoming> incoming_;                      // notices under way
  std::vector<std::shared_ptr<Transfer>> ended_;      // transfers ended since the last finish()
  std::vector<std::function<void()>> callbacks_;      // callbacks of ended transfers
  std::size_t taken_ = 0;                             // arrivals that have not been received
  std::vector<PeerState> peers_;                      // state of each rank
  std::vector<bool> known_peers_;  // true for each rank with which messages have passed, or are awaited
  int lost_ = 0;                   // ranks that are no longer open
  bool has_thread_ = false;
  Clock::time_point looked_{};  // time of the last search for lost ranks
  bool closed_ = false;
  std::atomic<bool> has_left_{false};  // the closing thread is done with the endpoint
  std::atomic<int> waiters_{0};
};

}  // namespace gradientflow::transport

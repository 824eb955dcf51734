// Messages between the ranks of a communicator, over its endpoint.
//
// A collective call sends many messages, segments of its tensors. Between two ranks, messages of one call and one
// purpose arrive in the order in which they were sent. The tag keeps calls separate, so a rank may be ahead of others.
//
// A rank that closes its communicator, or gives up after an error, sends a notice to all other ranks, which look for
// notices in long waits. When the time is up, the ranks that still wait call a roll, and name the ranks that do not
// answer.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "../../base/error.hpp"
#include "../endpoint.hpp"
#include "../node/node.hpp"
#include "../patience.hpp"
#include "../signature.hpp"

namespace gradientflow::transport {

// Purpose of a message.
enum class Purpose : std::uint8_t { agreement, data, user, roll_call, leave };

// The tag of a message. It fits into the 15 bits that every MPI library has (MPI_TAG_UB is at least 32767): 3 for the
// purpose, 12 for the number of the call, which wraps around. That is safe: messages with one tag are received in the
// order in which they were sent, and a call that leaves messages behind breaks the communicator.
class Tag {
 public:
  Tag(Purpose purpose, std::uint32_t call) : call_(call), purpose_(purpose) {}
  [[nodiscard]] int value() const {
    return static_cast<int>(call_ % calls << purpose_bits | static_cast<int>(purpose_));
  }

 private:
  static constexpr std::uint32_t purpose_bits = 3;
  static constexpr std::uint32_t calls = 1U << 12;

  std::uint32_t call_;
  Purpose purpose_;
};

class Messages {
 public:
  // Collective. `node`: this rank's node, which is told about progress and reports failed ranks.
  Messages(Endpoint& endpoint, Node& node, const Topology& topology, double timeout);
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;
  ~Messages() { end(); }

  // Notes that rank `peer` may wait for this rank before any message has passed between them. Then `peer` is told, too,
  // when this rank leaves.
  void add_peer(int peer) { known_peers_[static_cast<std::size_t>(peer)] = true; }

  // Begins the next collective call; its number becomes part of the tags. `participants`: the ranks that exchange
  // messages in it, among which the roll is called when it stalls. The vector must outlive the call.
  void begin(const Signature& signature, const std::vector<int>& participants);

  // Sets other participants: the ranks that exchange data, instead of the ranks that agreed on the call.
  void expect(const std::vector<int>& participants) { participants_ = &participants; }

  // Start a message. Throw Error(mpi).
  [[nodiscard]] Request send(int to, Purpose purpose, const void* data, std::size_t bytes) const;
  [[nodiscard]] Request receive(int from, Purpose purpose, void* data, std::size_t bytes) const;

  // Waits until the message is sent (its memory may change) or received. Returns the bytes received, 0 if nothing was
  // under way. Throws Error(timeout) that names the missing ranks, Error(peer) where a rank has left or died,
  // Error(closed) after an interrupt.
  std::size_t wait(Request& message);

  // The same for a message of a user, which belongs to no collective call and is described by `what`. Any thread may
  // call.
  std::size_t wait_user_message(Request& message, const std::string& what);

  // Throws as wait() does where a rank has given up or died. For a part of the collective call that waits elsewhere.
  void check_peers();

  // Totals of collective calls so far.
  [[nodiscard]] std::uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t messages_sent() const { return messages_sent_.load(std::memory_order_relaxed); }

  [[nodiscard]] const Endpoint& endpoint() const { return *endpoint_; }
  [[nodiscard]] int rank() const { return endpoint_->rank(); }
  [[nodiscard]] int size() const { return endpoint_->size(); }

  // Tell other ranks that this rank has left, and why; among many ranks, tell only its peers.
  void tell_closed() noexcept;
  void tell_failed(const Error& error) noexcept;
  // Closes the endpoint, once no message is sent or received any more. The destructor closes the endpoint, too.
  void end() noexcept;
  // Returns the ranks that have announced so far that they have left, with no error before.
  [[nodiscard]] std::vector<int> closed();

 private:
  enum class NoticeKind : std::uint32_t { open, asking, here, closed, failed };

  // Message of a rank about its own state.
  struct Notice {
    NoticeKind state;
    ErrorKind kind;
    std::uint32_t call;
    char text[500];
  };
  static_assert(sizeof(Notice) == 512);

  struct PeerState {  // state of a rank of another node
    NoticeKind state = NoticeKind::open;
    std::uint32_t present = 0;  // last call in which it answered the roll
    bool asks = false;          // true if it calls the roll
    ErrorKind kind = ErrorKind::peer;
    std::string text;
  };

  struct Incoming {  // a notice under way
    std::shared_ptr<Notice> notice;
    Request request;
  };

  template <class Describe>
  [[nodiscard]] std::optional<std::size_t> test(Request& message, bool collective, Describe describe);
  template <class Describe>
  std::size_t wait(Request& message, Patience& patience, bool collective, Describe describe);
  [[nodiscard]] std::optional<Error> check_peers(int awaited, const std::string& what, bool collective);
  [[nodiscard]] std::optional<Error> find_death(int awaited, const std::string& what, bool collective);
  [[nodiscard]] bool has_failed(int rank);
  [[nodiscard]] Error failure_of(int rank, const std::string& what);
  [[nodiscard]] std::optional<Error> departure_of(int rank, const std::string& what, bool collective,
                                                  bool is_lost = false);
  void read_notices();
  void take(Purpose purpose, int source, const Notice& notice);
  void answer_the_roll();
  void leave(NoticeKind state, ErrorKind kind, const char* text) noexcept;
  [[nodiscard]] std::vector<int> ranks_to_tell()
      const;  // ranks that this rank tells when it leaves, and that tell this rank
  void tell(const std::vector<int>& ranks, NoticeKind state, ErrorKind kind, const char* text);
  [[nodiscard]] std::vector<int> missing_ranks(int awaited);

  Endpoint* endpoint_;
  Node* node_;
  const Topology* topology_;
  double timeout_;
  std::uint32_t call_ = 0;
  Patience::Clock::time_point awake_{};  // time until which waits do not sleep
  Patience::Clock::duration last_wait_{};
  Signature signature_;
  const std::vector<int>* participants_ = nullptr;
  std::vector<PeerState> peers_;                 // state of each rank
  std::array<std::list<Incoming>, 2> incoming_;  // roll calls, leaves
  std::mutex peers_mutex_;
  std::mutex leave_mutex_;  // a thread may announce that this rank gives up while another thread closes
  mutable std::vector<std::atomic<bool>> known_peers_;  // each rank with which messages have passed
  mutable std::atomic<std::uint64_t> bytes_sent_{0};
  mutable std::atomic<std::uint64_t> messages_sent_{0};
  bool told_ = false;
  std::atomic<bool> gave_up_{false};
  bool ended_ = false;
};

}  // namespace gradientflow::transport

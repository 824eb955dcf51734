// One connection to another process: its output, and the destinations of its input. It knows nothing of ranks and
// messages, and never waits.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "../descriptor.hpp"
#include "operations.hpp"
#include "watched.hpp"
#include "wire.hpp"

namespace gradientflow::transport::tcp {

class Connection : public Watched {
 public:
  // Receiver of input, which gives its destination.
  class Receiver {
   public:
    virtual ~Receiver() = default;
    virtual void take_header(Connection& from, const Header& header) = 0;  // may call expect(), throw Error(peer)
    virtual void take_landed(Connection& from) = 0;                        // all expected bytes are there
  };

  enum class IoStatus : std::uint8_t { done, more, blocked, closed, failed };

  Connection(Descriptor socket, int peer) : Watched(Kind::connection), socket_(std::move(socket)), peer_(peer) {}

  [[nodiscard]] int peer() const noexcept { return peer_; }
  [[nodiscard]] int descriptor() const noexcept { return socket_.get(); }

  // put() queues a greeting, which goes first, or a header, followed by a part of the data of `sending`. put_urgent()
  // queues a header that overtakes data.
  void put(const Greeting& greeting);
  void put(const Header& header, Sending* sending = nullptr, std::size_t offset = 0, std::size_t length = 0);
  void put_urgent(const Header& header);
  // Queues a message that the peer fetches. Its pieces are sent between other messages.
  void put_pieces(const Header& first, Sending& sending);
  [[nodiscard]] bool has_to_send() const noexcept { return !urgent_.empty() || !queue_.empty(); }
  [[nodiscard]] bool has_sent() const noexcept { return has_sent_; }

  // Sends as much as possible. Returns done, blocked, or failed with errno set. Adds to `sent` sends that have left.
  IoStatus flush(std::vector<Sending*>& sent);

  // Receives all or some of the data that is there. Returns more (call again), done, closed (by the peer), or failed
  // with errno set.
  IoStatus read(std::span<std::byte> spill, Receiver& receiver);

  // Destination of the bytes behind the last header; they are dropped where `to` is nullptr.
  struct Landing {
    std::byte* to = nullptr;
    std::size_t left = 0;
    Receiving* receiving = nullptr;
    Arrived* arrived = nullptr;
    std::uint64_t number = 0;  // number of a piece's message
    std::size_t bytes = 0;     // all bytes behind the header
    std::size_t cost = 0;      // credit to be given back
  };
  void expect(const Landing& landing) noexcept { landing_ = landing; }
  [[nodiscard]] Landing& landing() noexcept { return landing_; }

  // Takes out sends that have not left, and never will.
  void take_unsent(std::vector<Sending*>& unsent);

  // State for the engine that watches this connection.
  bool is_connecting = false;
  bool awaits_room = false;  // the system cannot take more now
  bool is_lost = false;
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
  std::optional<std::chrono::steady_clock::time_point> unacknowledged_since;

 private:
  struct Outgoing {
    std::array<std::byte, sizeof(Greeting)> head;
    std::size_t head_bytes;
    Sending* sending;
    std::size_t offset;
    std::size_t length;
    std::size_t done;  // bytes sent of head and data
    bool is_piece;
  };

  [[nodiscard]] static Outgoing with_head(const void* head, std::size_t bytes);
  void advance(std::size_t bytes, std::vector<Sending*>& sent);
  void finish(const Outgoing& outgoing, std::vector<Sending*>& sent);
  void ask_for_much();
  void consume(std::span<const std::byte> bytes, Receiver& receiver);

  Descriptor socket_;
  int peer_;
  std::deque<Outgoing> urgent_;
  std::deque<Outgoing> queue_;
  std::array<std::byte, sizeof(Header)> head_{};
  std::size_t head_bytes_ = 0;
  Landing landing_;
  bool has_sent_ = false;
  int least_worth_reading_ = 1;  // bytes, as set in the system
};

}  // namespace gradientflow::transport::tcp

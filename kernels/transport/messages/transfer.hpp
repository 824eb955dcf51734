// Transfers of a mailbox: sends and receives that continue by themselves, of messages known by their envelopes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "../../base/error.hpp"
#include "../endpoint.hpp"

namespace gradientflow::transport {

class Mailbox;

// Form in which a message travels. Sender and receiver must give the same route.
enum class Route : std::uint8_t { whole, in_parts };

// A range of a mailbox's tags, for one purpose.
struct Tags {
  int first = 0;
  int count = 0;

  // Returns the tag with this number of the range. Throws Error(value) if the range has no such number.
  [[nodiscard]] int at(std::int64_t number) const;
  [[nodiscard]] bool has(int tag) const noexcept { return tag >= first && tag - first < count; }
};

// A send or receive, under way or ended. It continues even if no caller holds it, and keeps the owner of its memory.
class Transfer {
 public:
  // Reports whether the transfer has ended, well or badly. Makes no progress: see Mailbox::poll.
  [[nodiscard]] bool ended() const noexcept { return ended_.load(std::memory_order_acquire); }

  // Throws the error of an ended transfer, if it has one. Error(mismatch): a message of another size came, and is
  // dropped. Error(peer): the peer has closed its mailbox, given up, or died; if it gave an error as its reason, that
  // error is thrown instead. Error(closed): this mailbox has closed.
  void check() const;

  // Returns the envelope of the received message, once a receive has ended.
  [[nodiscard]] const Envelope& envelope() const noexcept { return envelope_; }

 private:
  friend class Mailbox;
  using Kind = Request::Kind;
  [[nodiscard]] std::string what() const;

  Kind kind_ = Kind::send;
  int peer_ = -1;
  int tag_ = 0;
  void* data_ = nullptr;  // memory of a receive, or of a send in parts
  std::size_t bytes_ = 0;
  std::size_t parts_ = 0;  // number of parts in which it travels; 0: it is a part, or travels whole
  std::size_t parts_begun_ = 0;
  std::size_t parts_ended_ = 0;
  std::shared_ptr<Transfer> whole_;  // transfer of which this is a part
  Request request_;
  Owner owner_;
  Envelope envelope_;
  std::optional<Error> error_;
  std::function<void()> then_;
  std::atomic<bool> ended_{false};
};

[[nodiscard]] std::string rank_text(int rank);  // "rank 3", or "any rank"

}  // namespace gradientflow::transport

// Notes: small messages between servers and workers, separate from the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../../transport/messages/mailbox.hpp"

namespace gradientflow::engine {

// Settings of the optimizer for a tensor in a round.
struct ServerSettings {
  float rate = 0.0F;
  float momentum = 0.0F;
  float weight_decay = 0.0F;
  float trust = 0.0F;  // trust coefficient of LARS; 0: none

  bool operator==(const ServerSettings&) const = default;
};

// Update rule of the servers. With "lars" settings may have trust coefficients; with "adam" they have no momentum.
struct ServerOptimizer {
  std::string name = "sgd";
  bool rate_in_momentum = false;  // option of "sgd"; always true for "lars"
  double beta_1 = 0.9;            // coefficients of "adam", as the next two
  double beta_2 = 0.999;
  double epsilon = 1e-8;

  [[nodiscard]] bool is_adam() const { return name == "adam"; }
  [[nodiscard]] bool is_rate_inside() const { return rate_in_momentum || name == "lars"; }
};

// Tensors with a gradient in a push: a nonzero byte for each such tensor. Empty: all tensors have a gradient.
using Presence = std::vector<std::uint8_t>;

// Reason for skipping the round of a push. If the pushes of a round have different reasons, the largest value holds.
enum class Skip : std::uint8_t { no, nonfinite, abandoned };

// Skipped push: the reason, and the rank whose push caused it.
struct SkippedPush {
  std::uint64_t push = 0;
  std::uint64_t skip = 0;  // Skip
  std::int64_t rank = -1;
  std::int64_t tensor = -1;  // tensor whose gradient was not finite there; -1: unknown
};
static_assert(std::has_unique_object_representations_v<SkippedPush>);

enum class NoteKind : std::uint32_t {
  // Each with the fields that it uses. Notes to a server.
  push,      // skip, tensor: see SkippedPush; scale: the loss scale; payload: the settings of each tensor, if they have
             // changed, then its Presence, if is_partial. If number is not 0, the push is also a pull
  pull,      // number of the pull; exact; the answer waits for the release of push `pushes`, and for `round` epoch ends
  depart,    // the worker pushes no more until the end
  closed,    // the worker has closed
  load,      // number of the array, which follows as a separate message
  state,     // number of the array to be sent; pushes and round as for a pull
  decision,  // decision of server 0; payload: see Server::decide
  report,    // number of the wanted report; to a worker, payload: its numbers
  norms,     // another server's norms, see ServerShard::norms
  copy,    // another server's shard: see server_copies.cpp. number of that server; round; payload: the updates of each
           // tensor; tensor: number of arrays of the copy, which follows as a separate message
  copied,  // confirmation of the oldest copy sent, by the server that keeps copies of this one
  // Notes to a worker.
  release,  // pushes: last push after which it may continue; round: last round; payload: its skipped pushes, each as
            // SkippedPush; answers: server 0 has also answered the pull
  answer,   // number of the server that has answered the pull
  safe,     // number of the server; pushes: the last push there that outlives the loss of a rank
  failure,  // number: the kind of error; payload: its text
};

struct Note {
  NoteKind kind = NoteKind::push;
  Skip skip = Skip::no;
  bool exact = false;
  bool answers = false;
  bool is_partial = false;
  std::uint64_t number = 0;
  std::uint64_t pushes = 0;
  std::uint64_t round = 0;
  std::int64_t tensor = -1;
  float scale = 1.0F;
};
static_assert(std::is_trivially_copyable_v<Note>);

// Tags of a parameter server's messages.
struct ServerTags {
  explicit ServerTags(transport::Mailbox& mailbox)
      : to_server(mailbox.draw(1)), to_worker(mailbox.draw(1)), data(mailbox.draw(5)) {}
  [[nodiscard]] int pushed() const { return data.first; }
  [[nodiscard]] int pulled() const { return data.first + 1; }
  [[nodiscard]] int loaded() const { return data.first + 2; }
  [[nodiscard]] int state() const { return data.first + 3; }
  [[nodiscard]] int copied() const { return data.first + 4; }
  transport::Tags to_server;
  transport::Tags to_worker;
  transport::Tags data;
};

inline void send_note(transport::Mailbox& mailbox, int to, const transport::Tags& tags, const Note& note,
                      std::span<const std::byte> payload = {}) {
  const std::size_t bytes = sizeof note + payload.size();
  auto memory = std::make_shared_for_overwrite<std::byte[]>(bytes);
  std::memcpy(memory.get(), &note, sizeof note);
  if (!payload.empty()) {
    std::memcpy(memory.get() + sizeof note, payload.data(), payload.size());
  }
  const std::byte* const data = memory.get();
  static_cast<void>(mailbox.send(to, tags.first, data, bytes, std::move(memory)));
}

template <class T>
[[nodiscard]] std::vector<T> values_of(std::span<const std::byte> bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) {
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  }
  return values;
}

struct ReceivedNote {
  int source;
  Note note;
  std::vector<std::byte> payload;

  template <class T>
  [[nodiscard]] std::vector<T> payload_as() const {
    return values_of<T>(payload);
  }
};

// Returns the next note with these tags, if one has arrived.
[[nodiscard]] inline std::optional<ReceivedNote> take_note(transport::Mailbox& mailbox, const transport::Tags& tags) {
  const auto arrival = mailbox.take(transport::Mailbox::any_source, tags);
  if (arrival == nullptr) {
    return std::nullopt;
  }
  const std::size_t bytes = arrival->envelope().bytes;
  auto memory = std::make_shared_for_overwrite<std::byte[]>(bytes);
  std::byte* const data = memory.get();
  const auto transfer = mailbox.receive(*arrival, data, memory);
  mailbox.wait(*transfer);
  ReceivedNote received{arrival->envelope().source, {}, {data + sizeof(Note), data + bytes}};
  std::memcpy(&received.note, data, sizeof(Note));
  return received;
}

}  // namespace gradientflow::engine

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "server.hpp"

namespace gradientflow::engine {

void Server::load(const ReceivedNote& received) {
  auto values = std::make_shared_for_overwrite<float[]>(std::max<std::size_t>(shard_.size(), 1));
  float* const data = values.get();
  const auto transfer =
      shared_.mailbox->receive(received.source, shared_.tags.loaded(), data, shard_.size() * sizeof(float), values);
  while (!shared_.mailbox->ended_by(*transfer, Clock::now() + between_looks)) {
    if (stops_) {
      return;
    }
  }
  transfer->check();
  shard_.load(received.note.number, data);
  ++changes_;
  has_weights_ = has_weights_ || received.note.number == 0;
  keep_copy(true);
  if (received.note.number == 0) {
    for (int w = 0; w < shared_.roles.workers; ++w) {
      answer_pulls(w);
    }
  }
}

// Sends statistics (rounds, ends, and the log's numbers), or the trace.
void Server::report(int number, std::uint64_t what) {
  std::vector<double> numbers = log_.trace();
  if (what == 0) {
    numbers = log_.statistics();
    numbers.insert(numbers.begin(), {static_cast<double>(rounds_), static_cast<double>(ends_)});
  }
  send_note(*shared_.mailbox, number, shared_.tags.to_worker, {.kind = NoteKind::report},
            std::as_bytes(std::span(numbers)));
}

void Server::send_array(int number, std::size_t array) {
  auto values = std::make_shared<const std::vector<float>>(shard_.array(array));
  const float* const data = values->data();
  const std::size_t bytes = values->size() * sizeof(float);
  static_cast<void>(shared_.mailbox->send(number, shared_.tags.state(), data, bytes, std::move(values)));
}

}  // namespace gradientflow::engine

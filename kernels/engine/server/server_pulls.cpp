#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "server.hpp"

namespace gradientflow::engine {

bool Server::is_due(const ReceivedNote& pull, std::uint64_t released) const {
  return has_weights_ && loads_under_way_ == 0 && released >= pull.note.pushes && ends_ >= pull.note.round;
}

void Server::answer_pulls(int number) {
  if (answer_due(number)) {
    tell_answer(number);
  }
}

// Answers the due pulls. Returns true if the worker must be told that its weights are ready.
bool Server::answer_due(int number) {
  Worker& of = worker(number);
  bool has_weights = false;
  std::erase_if(of.pulls, [&](const ReceivedNote& pull) {
    const bool is_due = this->is_due(pull, of.released);
    if (is_due) {
      answer(number, pull);
      has_weights = has_weights || pull.note.kind != NoteKind::state;
    }
    return is_due;
  });
  return has_weights;
}

void Server::tell_answer(int number) {
  send_note(*shared_.mailbox, number, shared_.tags.to_worker, {.kind = NoteKind::answer, .number = number_});
}

// Returns pulls by workers of other nodes that are due right after the next round, before the weights change again.
// Their weights are sent range by range, while later ranges are still being updated.
std::vector<ReceivedNote> Server::pulls_after_round() {
  std::vector<ReceivedNote> pulls;
  for (auto next = decisions_.begin(); next != decisions_.end() && next->kind == Decision::Kind::release; ++next) {
    for (const int w : next->workers) {
      std::copy_if(worker(w).pulls.begin(), worker(w).pulls.end(), std::back_inserter(pulls),
                   [&](const ReceivedNote& pull) {
                     return !is_here(w) && pull.note.kind != NoteKind::state && is_due(pull, worker(w).released + 1);
                   });
    }
  }
  return pulls;
}

void Server::answer(int number, const ReceivedNote& pull) {
  if (pull.note.kind == NoteKind::state) {
    send_array(number, pull.note.number);
    return;
  }
  if (is_here(number)) {
    shard_.lease_to(number);
  } else if (!std::exchange(worker(number).has_weights, false)) {
    for (std::size_t r = 0; r < shared_.layout.ranges().size(); ++r) {
      send_weights(number, pull.note.exact, r);
    }
  }
}

// Sends a range of a copy of the weights, which all pulls of the same weights share. The copy is made range by range.
// If an old copy is still being sent, the new copy is made in new memory.
void Server::send_weights(int number, bool exact, std::size_t range) {
  Copy& copy = copies_[exact ? 1 : 0];
  const std::size_t item = exact ? sizeof(float) : size_of(shared_.wire);
  if (copy.values == nullptr || copy.changes != changes_) {
    if (copy.values == nullptr || copy.values.use_count() > 1) {
      copy.values = std::make_shared_for_overwrite<std::byte[]>(std::max<std::size_t>(shard_.size() * item, 1));
    }
    copy.ranges = 0;
    copy.changes = changes_;
  }
  const Piece& piece = shared_.layout.piece(range, number_);
  std::byte* const values = copy.values.get() + piece.shard * item;
  if (range == copy.ranges) {
    const std::byte* const weights =
        exact ? reinterpret_cast<const std::byte*>(shard_.latest()) : shard_.latest_wire_weights();
    std::memcpy(values, weights + piece.shard * item, piece.count * item);
    ++copy.ranges;
  }
  if (piece.count > 0) {
    static_cast<void>(shared_.mailbox->send(number, shared_.tags.pulled(), values, piece.count * item, copy.values,
                                            transport::Route::in_parts));
  }
}

}  // namespace gradientflow::engine

#include "call_pieces.hpp"

#include <algorithm>
#include <string>

#include "../../base/error.hpp"

namespace gradientflow::collective {
namespace {

using transport::CallKind;

constexpr std::size_t line = 64;  // bytes of a cache line; blocks of a buffer begin at its multiples if there is room

// Adds a move, or lengthens the last move if the new move continues it.
void add(std::vector<Move>& moves, std::size_t tensor, std::size_t buffer, std::size_t bytes) {
  if (bytes == 0) {
    return;
  }
  if (!moves.empty() && moves.back().tensor + moves.back().bytes == tensor &&
      moves.back().buffer + moves.back().bytes == buffer) {
    moves.back().bytes += bytes;
  } else {
    moves.push_back({tensor, buffer, bytes});
  }
}

}  // namespace

CallPieces::CallPieces(const Call& call, int ranks, int rank, std::size_t capacity)
    : call_(call), ranks_(static_cast<std::size_t>(ranks)), rank_(static_cast<std::size_t>(rank)) {
  const std::size_t element = call.element();
  length_ = capacity / ((transport::traits_of(call.signature.kind).is_in_place ? 1 : ranks_) * element);
  if (length_ == 0) {
    throw Error(ErrorKind::internal, "a buffer of " + std::to_string(capacity) +
                                         " bytes has no room for an element of " + std::to_string(ranks) + " ranks");
  }
  if (length_ > line / element) {
    length_ -= length_ % (line / element);
  }
  std::size_t longest = 0;
  for (std::size_t of = 0; of < ranks_; ++of) {
    longest = std::max(longest, of_block(of));
  }
  size_ = pieces(longest, length_);
}

std::size_t CallPieces::of_block(std::size_t rank) const {
  return block_count(call_.signature, call_.counts, static_cast<int>(ranks_), static_cast<int>(rank));
}

// Piece k has elements [k * length, (k + 1) * length) of the tensor, or of every rank's block of it. With
// reduce_scatter, the first blocks of the tensor may have one element more than the rest. The last piece is then uneven
// in the same way: block() cuts its blocks from their total length.
CallPiece CallPieces::at(std::size_t index) const {
  const std::size_t element = call_.element();
  const auto part = [&](std::size_t rank) { return piece({0, of_block(rank)}, length_, index); };
  const Range mine = part(rank_);

  CallPiece cut;
  cut.call.signature = call_.signature;
  cut.call.signature.memory = transport::Memory::host;
  cut.call.signature.count = mine.size();

  // Moves the tensor, or only this rank's block, between offset 0 of the buffer and its place in the tensor.
  const auto one = [&](std::vector<Move>& moves) { add(moves, mine.begin * element, 0, mine.size() * element); };
  // Moves the blocks of all ranks.
  const auto all = [&](std::vector<Move>& moves) {
    std::size_t tensor = 0;
    std::size_t buffer = 0;
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      add(moves, (tensor + part(rank).begin) * element, buffer * element, part(rank).size() * element);
      tensor += of_block(rank);
      buffer += part(rank).size();
    }
    return buffer;
  };

  const transport::KindTraits& kind = transport::traits_of(call_.signature.kind);
  const auto move = [&](const transport::Operand& operand, std::vector<Move>& moves) {
    if (!operand.has_all_blocks) {
      one(moves);
    } else if (const std::size_t count = all(moves); kind.counts_all_blocks) {
      cut.call.signature.count = count;
    }
  };
  const bool is_root = static_cast<std::int32_t>(rank_) == call_.signature.root;
  if (kind.input.is_held(is_root)) {
    move(kind.input, cut.in);
  }
  if (kind.output.is_held(is_root)) {
    move(kind.output, cut.out);
  }
  if (call_.signature.kind == CallKind::allgatherv) {
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      cut.call.counts.push_back(part(rank).size());
    }
    cut.call.signature.detail = hash_of(cut.call.counts);
  }
  return cut;
}

}  // namespace gradientflow::collective

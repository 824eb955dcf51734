// A call cut into pieces that fit into a buffer, for tensors that are staged in other memory.
//
// Each piece is a smaller call of the same kind, on a dense input buffer and a dense output buffer; moves map their
// bytes to the tensors. All ranks cut the same pieces. Allreduce, broadcast and reduce work in place: their output
// buffer is the input buffer. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "call.hpp"

namespace gradientflow::collective {

// Offsets in bytes.
struct Move {
  std::size_t tensor;
  std::size_t buffer;
  std::size_t bytes;
};

struct CallPiece {
  Call call;              // without addresses and placement
  std::vector<Move> in;   // from the input tensor into the input buffer
  std::vector<Move> out;  // from the output buffer to the output tensor
};

class CallPieces {
 public:
  // No buffer of a piece has more than `capacity` bytes, which must hold an element of each rank. The signature's dtype
  // is that of the tensors. The call must outlive this object.
  CallPieces(const Call& call, int ranks, int rank, std::size_t capacity);

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] CallPiece at(std::size_t index) const;

 private:
  [[nodiscard]] std::size_t of_block(std::size_t rank) const;  // elements of that rank's block, or of the tensor
  const Call& call_;
  std::size_t ranks_;
  std::size_t rank_;
  std::size_t length_;  // elements of a piece, or of each block in it
  std::size_t size_;
};

}  // namespace gradientflow::collective

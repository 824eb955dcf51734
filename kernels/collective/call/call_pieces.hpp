// A call cut into pieces that fit into a buffer, for tensors that are staged in other memory.
//
// Each piece is a smaller call of the same kind, on dense input and output buffers. Moves map the bytes of the buffers
// to the tensors. All ranks cut the same pieces. Allreduce, broadcast and reduce use one buffer for input and output.
// All functions are pure.
#pragma once

#include <cstddef>
#include <vector>

#include "call.hpp"

namespace gradientflow::collective {

// A copy between tensor and buffer; offsets in bytes.
struct Move {
  std::size_t tensor;
  std::size_t buffer;
  std::size_t bytes;
};

struct CallPiece {
  Call call;              // smaller call, without addresses and placement
  std::vector<Move> in;   // moves from input tensor to input buffer
  std::vector<Move> out;  // moves from output buffer to output tensor
};

class CallPieces {
 public:
  // Cuts a call into pieces whose buffers have at most `capacity` bytes each, enough for an element of each rank. The
  // tensors have the signature's dtype. The call must outlive this object.
  CallPieces(const Call& call, int ranks, int rank, std::size_t capacity);

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] CallPiece at(std::size_t index) const;

 private:
  [[nodiscard]] std::size_t of_block(std::size_t rank) const;  // elements of a rank's block, or of the tensor
  const Call& call_;
  std::size_t ranks_;
  std::size_t rank_;
  std::size_t length_;  // elements of a piece, or of each block in it
  std::size_t size_;
};

}  // namespace gradientflow::collective

// Before a call between nodes moves data, all ranks hear of it from all others: one message in each round of recursive
// doubling between the first ranks of the nodes. A difference anywhere reaches everybody. A small tensor travels along
// and is reduced on the way, so that nothing is left to do.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "../compute/kernels.hpp"
#include "../transport/messages.hpp"
#include "recursive_doubling.hpp"

namespace gradientflow::collective {

// What is told about a call, combined over all ranks.
struct Word {
  transport::Signature signature;
  bool same = true;    // no rank has made another call
  bool mapped = true;  // on every node the tensors of all ranks lie in memory that they share
};

// What one of the nodes' first ranks does to agree.
class Agreement {
 public:
  // `leaders`: the first ranks of all nodes; `index`: this one's place among them. `largest`: the bytes that any
  // payload of any call can have.
  Agreement(transport::Messages& messages, std::vector<int> leaders, std::size_t index, std::size_t largest);

  [[nodiscard]] const std::vector<int>& leaders() const { return leaders_; }

  // What all of them say. The payload becomes the sum over them, without division.
  Word agree(Word word, std::span<std::byte> payload, const compute::Reduction& how);

 private:
  // Combines what came with what this rank has; `mine_first`: in the order of the operands. `finished`: what came is
  // the end of the agreement, not a part of it.
  void take_in(Word& word, std::span<std::byte> payload, const compute::Reduction& how, std::size_t bytes,
               bool mine_first, bool finished) const;

  transport::Messages& messages_;
  std::vector<int> leaders_;
  std::size_t index_;
  std::vector<Round> rounds_;
  std::vector<std::byte> outgoing_;  // a word, then the payload
  std::vector<std::byte> incoming_;
};

}  // namespace gradientflow::collective

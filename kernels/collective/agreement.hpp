// Before a call between nodes moves data, all ranks hear of it from all others: one message in each round of recursive
// doubling between the first ranks of the nodes. A difference anywhere reaches everybody. A small tensor travels along
// and is reduced on the way, so that nothing is left to do.
#pragma once

#include <cstddef>
#include <vector>

#include "lane.hpp"

namespace gradientflow::collective {

// What is told about a call, combined over all ranks.
struct Word {
  transport::Signature signature;
  bool same = true;     // no rank has made another call
  bool mapped = true;   // on every node the tensors of all ranks lie in memory that they share
};

// A small tensor that is to be reduced along with the agreement; `values` is empty if there is none.
struct Payload {
  std::vector<std::byte> values;
  compute::Reduction how;  // without division
};

// On the lane of the nodes' first ranks. `largest`: the bytes that any payload of any call can have.
Word agree(const Lane& leaders, const Word& mine, Payload& payload, std::size_t largest);

}  // namespace gradientflow::collective

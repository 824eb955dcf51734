// Pipeline of tensors through slots of node memory, piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../transport/node/node.hpp"

namespace gradientflow::collective {

// Runs three stages: copy in, work, copy out. A rank fills the slot of piece k + 1 before it waits for piece k. Two
// slots are enough: piece k - 1 used the same slot, and `out` of piece k - 1 waited until all ranks had finished their
// work on it. `work` of piece k + 1 overwrites results of piece k - 1, but only after all ranks have filled their slots
// with piece k + 1, and a rank fills its slot after its `out` of piece k - 1.
template <class In, class Work, class Out>
void pipeline(transport::Node& node, std::size_t pieces, In in, Work work, Out out) {
  in(std::size_t{0});
  std::uint32_t all_in = node.advance();
  for (std::size_t k = 0; k < pieces; ++k) {
    std::uint32_t next_in = 0;
    if (k + 1 < pieces) {
      in(k + 1);
      next_in = node.advance();
    }
    node.wait_all(all_in);
    work(k);
    node.wait_all(node.advance());
    out(k);
    all_in = next_in;
  }
}

}  // namespace gradientflow::collective

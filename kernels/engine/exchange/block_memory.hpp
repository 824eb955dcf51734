// The blocks of a rank, and where it finds those of the others.
//
// Inside a node blocks lie in memory that its ranks share, twice, for iterations in turn: a rank writes its next ones
// while others still read its last ones, and comes back to a side only once all ranks have met in between. Otherwise an
// allgather brings them.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "../calls/communicator.hpp"
#include "top_k_plan.hpp"

namespace gradientflow::engine {

class BlockMemory {
 public:
  // Whether messages pass through memory that all ranks share, without MPI.
  [[nodiscard]] static bool is_for(const Communicator& communicator, transport::Algorithm algorithm);

  // With room for so many bytes of each rank; `algorithm` serves allgathers, where there are some. Collective.
  BlockMemory(Communicator& communicator, transport::Algorithm algorithm, std::size_t bytes);

  // From now on so many bytes. What does not fit into shared memory is gathered, until `grow`.
  void resize(std::size_t bytes);
  [[nodiscard]] bool must_grow() const { return shares_ && bytes_ > capacity_; }
  void grow();  // collective

  void next_iteration() { side_ = 1 - side_; }

  [[nodiscard]] std::byte* own(std::size_t offset);

  // The call after which all ranks' blocks of a message can be read.
  [[nodiscard]] collective::Call call_for(const TopKMessage& message);

  // Those of each rank, of a message, from `offset` on.
  [[nodiscard]] std::vector<const std::byte*> of_each(const TopKMessage& message, std::size_t offset) const;

  // Whether all ranks read the same memory.
  [[nodiscard]] bool shared() const { return shares_ && bytes_ <= capacity_; }

 private:
  Communicator* communicator_;
  transport::Algorithm algorithm_;
  bool shares_;
  std::size_t bytes_ = 0;
  std::size_t capacity_ = 0;
  std::size_t side_ = 0;
  std::shared_ptr<transport::Segment> segment_;
  std::vector<std::byte> own_;
  std::vector<std::byte> received_;  // by message, then by rank
};

}  // namespace gradientflow::engine

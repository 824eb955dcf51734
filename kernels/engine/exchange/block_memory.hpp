// The memory for the blocks of a rank and of the other ranks.
//
// Inside a node blocks are in memory that its ranks share, on two sides, for iterations in turn: a rank writes its next
// blocks while others still read its last ones, and comes back to a side only after a barrier of all ranks. Otherwise
// blocks are exchanged by allgathers.
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

  // `bytes`: room for each rank. `algorithm`: of allgathers, if there are any. Collective.
  BlockMemory(Communicator& communicator, transport::Algorithm algorithm, std::size_t bytes);

  // Changes the room to `bytes`. If these do not fit into the shared memory, allgathers are used until `grow`.
  void resize(std::size_t bytes);
  [[nodiscard]] bool must_grow() const { return shares_ && bytes_ > capacity_; }
  void grow();  // collective

  void next_iteration() { side_ = 1 - side_; }

  [[nodiscard]] std::byte* own(std::size_t offset);

  // The call after which all ranks' blocks of a message can be read.
  [[nodiscard]] collective::Call call_for(const TopKMessage& message);

  // Each rank's blocks of a message, from byte `offset` on.
  [[nodiscard]] std::vector<const std::byte*> of_each(const TopKMessage& message, std::size_t offset) const;

  // Whether blocks are in shared memory now.
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

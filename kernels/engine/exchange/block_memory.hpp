// Memory for the blocks of all ranks.
//
// Inside a node blocks are in memory that its ranks share. It has two sides, used by iterations in turn: a rank writes
// its next blocks while peers still read its last blocks, and returns to a side only after a barrier of all ranks.
// Otherwise blocks are exchanged by allgathers.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "../calls/communicator.hpp"
#include "top_k_plan.hpp"

namespace gradientflow::engine {

class BlockMemory {
 public:
  // True if messages pass through memory that all ranks share, without MPI.
  [[nodiscard]] static bool is_for(const Communicator& communicator, transport::Algorithm algorithm);

  // `bytes`: room for each rank. `algorithm`: for allgathers, if any. Collective.
  BlockMemory(Communicator& communicator, transport::Algorithm algorithm, std::size_t bytes);

  // Changes the room to `bytes`. If the room exceeds the shared memory, allgathers are used until `grow`.
  void resize(std::size_t bytes);
  [[nodiscard]] bool must_grow() const { return shares_ && bytes_ > capacity_; }
  void grow();  // collective

  void next_iteration() { side_ = 1 - side_; }

  [[nodiscard]] std::byte* own(std::size_t offset);

  // Returns the call after which all ranks' blocks of a message can be read.
  [[nodiscard]] collective::Call call_for(const TopKMessage& message);

  // Returns each rank's blocks of a message, from byte `offset` on.
  [[nodiscard]] std::vector<const std::byte*> of_each(const TopKMessage& message, std::size_t offset) const;

  // True if blocks are in shared memory now.
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
  std::vector<std::byte> received_;  // blocks by message, then by rank
};

}  // namespace gradientflow::engine

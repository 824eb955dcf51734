#include "block_memory.hpp"

#include "../calls/request.hpp"

namespace gradientflow::engine {

using transport::Algorithm;

bool BlockMemory::is_for(const Communicator& communicator, Algorithm algorithm) {
  return communicator.nodes() == 1 && (algorithm == Algorithm::automatic || algorithm == Algorithm::shared);
}

BlockMemory::BlockMemory(Communicator& communicator, Algorithm algorithm, std::size_t bytes)
    : communicator_(&communicator),
      algorithm_(algorithm == Algorithm::ring || algorithm == Algorithm::mpi ? algorithm : Algorithm::automatic),
      shares_(communicator.size() > 1 && is_for(communicator, algorithm)) {
  resize(bytes);
  if (shares_) {
    grow();
  }
}

void BlockMemory::resize(std::size_t bytes) {
  bytes_ = bytes;
  if (!shared()) {
    own_.resize(bytes);
    received_.resize(communicator_->size() > 1 ? bytes * static_cast<std::size_t>(communicator_->size()) : 0);
  }
}

void BlockMemory::grow() {
  capacity_ = (bytes_ + 63) / 64 * 64;
  segment_ = communicator_->allocate(2 * capacity_);
  own_ = {};
  received_ = {};
}

std::byte* BlockMemory::own(std::size_t offset) {
  return (shared() ? segment_->mine() + side_ * capacity_ : own_.data()) + offset;
}

collective::Call BlockMemory::call_for(const TopKMessage& message) {
  if (shared() || communicator_->size() == 1) {
    return make_call(*communicator_, {.kind = transport::CallKind::barrier});
  }
  const auto ranks = static_cast<std::size_t>(communicator_->size());
  std::byte* const received = received_.data() + message.data * ranks;
  return make_call(*communicator_, {.kind = transport::CallKind::allgather,
                                    .algorithm = algorithm_,
                                    .input = {.data = own(message.data), .count = message.bytes},
                                    .output = {.data = received, .count = message.bytes * ranks}});
}

std::vector<const std::byte*> BlockMemory::of_each(const TopKMessage& message, std::size_t offset) const {
  std::vector<const std::byte*> blocks;
  const auto ranks = static_cast<std::size_t>(communicator_->size());
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (shared()) {
      const int local = communicator_->group().node().local_rank_of(static_cast<int>(rank));
      blocks.push_back(segment_->part(local) + side_ * capacity_ + offset);
    } else if (ranks == 1) {
      blocks.push_back(own_.data() + offset);
    } else {
      blocks.push_back(received_.data() + message.data * ranks + rank * message.bytes + (offset - message.data));
    }
  }
  return blocks;
}

}  // namespace gradientflow::engine

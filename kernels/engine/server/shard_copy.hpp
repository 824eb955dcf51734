// Copy of a shard as it was after a round: weights and optimizer state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace gradientflow::engine {

struct ShardCopy {
  std::uint64_t round = 0;
  std::vector<std::uint64_t> updates = {};  // updates of each tensor, for Adam
  std::size_t arrays = 0;                   // number of arrays concatenated in `values`: see ServerShard::array
  std::shared_ptr<std::vector<float>> values = {};

  [[nodiscard]] std::size_t bytes() const { return values->size() * sizeof(float); }
};

}  // namespace gradientflow::engine

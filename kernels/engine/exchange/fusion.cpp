#include "fusion.hpp"

#include <algorithm>

namespace gradientflow::engine {
namespace {

constexpr std::size_t share = 16;                    // divisor of a pool's bytes
constexpr std::size_t most_between_nodes = 4 * mib;  // largest range: a longer range would only begin later

}  // namespace

std::size_t automatic_threshold(std::size_t bytes, int nodes, bool callers_reduce) {
  if (nodes > 1) {
    return std::clamp(bytes / share, hot_bytes, most_between_nodes);
  }
  return callers_reduce ? hot_bytes : fusion_bytes;
}

std::vector<TensorRange> fuse(std::span<const std::size_t> bytes, std::size_t threshold) {
  std::vector<TensorRange> ranges;
  std::size_t begin = 0;
  std::size_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    sum += bytes[i];
    if (sum > 0 && sum >= threshold) {
      ranges.push_back({begin, i + 1});
      begin = i + 1;
      sum = 0;
    }
  }
  if (sum > 0) {
    ranges.push_back({begin, bytes.size()});
  } else if (!ranges.empty()) {  // tensors without elements
    ranges.back().end = bytes.size();
  }
  return ranges;
}

}  // namespace gradientflow::engine

// Index arithmetic of the collectives: the elements of each rank and of each piece. All functions are pure; counts and
// offsets are elements.
#pragma once

#include <algorithm>
#include <cstddef>

namespace gradientflow::collective {

struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;

  [[nodiscard]] std::size_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

// Returns block `index` of `parts` nearly equal blocks of `count` elements: the first count % parts have one more.
// Users see this partition in reduce_scatter.
[[nodiscard]] inline Range block(std::size_t count, std::size_t parts, std::size_t index) {
  const std::size_t base = count / parts;
  const std::size_t extra = count % parts;
  const std::size_t begin = index * base + std::min(index, extra);
  return {begin, begin + base + (index < extra ? 1 : 0)};
}

// Like block, with borders at multiples of `grain` elements, so that no two ranks write to one cache line. The last
// blocks may be shorter, or empty.
[[nodiscard]] inline Range slice(std::size_t count, std::size_t parts, std::size_t index, std::size_t grain) {
  const Range grains = block((count + grain - 1) / grain, parts, index);
  return {std::min(grains.begin * grain, count), std::min(grains.end * grain, count)};
}

// Returns piece `index` of a range cut into pieces of `length` elements; empty past the end.
[[nodiscard]] inline Range piece(const Range& range, std::size_t length, std::size_t index) {
  const std::size_t begin = std::min(range.begin + index * length, range.end);
  return {begin, std::min(begin + length, range.end)};
}

[[nodiscard]] inline std::size_t pieces(std::size_t count, std::size_t length) { return (count + length - 1) / length; }

}  // namespace gradientflow::collective

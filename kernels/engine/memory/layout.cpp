#include "layout.hpp"

#include "../../base/error.hpp"

namespace gradientflow::engine {

std::vector<std::size_t> lay_out(const std::vector<std::size_t>& counts, DType dtype) {
  constexpr std::size_t alignment = 64;
  constexpr std::size_t largest = std::size_t{1} << 40;  // limit of any node memory
  std::vector<std::size_t> offsets{0};
  for (const std::size_t count : counts) {
    if (count > largest || offsets.back() > largest) {
      throw Error(ErrorKind::value, "a pool of more than 1 TiB a rank is not possible");
    }
    offsets.push_back(offsets.back() + (count * size_of(dtype) + alignment - 1) / alignment * alignment);
  }
  return offsets;
}

std::vector<std::size_t> in_elements(std::span<const std::size_t> offsets, DType dtype) {
  std::vector<std::size_t> elements;
  for (const std::size_t offset : offsets) {
    elements.push_back(offset / size_of(dtype));
  }
  return elements;
}

}  // namespace gradientflow::engine

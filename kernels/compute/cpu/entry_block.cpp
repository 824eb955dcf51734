#include "entry_block.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "../../base/error.hpp"
#include "../top_k.hpp"
#include "../top_k_rules.hpp"

namespace gradientflow::compute {

EntryBlock block_of(std::size_t count, std::size_t k, DType values) {
  static_cast<void>(float_index(values));
  if (k > count || count > std::numeric_limits<std::uint32_t>::max()) {
    throw Error(ErrorKind::value,
                "a block of entries is of at most as many as the layer has elements, below 2^32, not " +
                    std::to_string(k) + " of " + std::to_string(count));
  }
  const std::array<std::size_t, 3> sizes = {k * 4, padded(k * 2) + index_pages(count) * 4, bitmap_words(count) * 4};
  const auto smallest = std::min_element(sizes.begin(), sizes.end());
  constexpr std::size_t head = sizeof(std::uint32_t);
  return {.count = count,
          .k = k,
          .values = values,
          .indices = static_cast<IndexFormat>(smallest - sizes.begin()),
          .index_begin = head,
          .value_begin = head + *smallest,
          .bytes = head + *smallest + padded(k * size_of(values))};
}

}  // namespace gradientflow::compute

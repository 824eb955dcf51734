#include "chunk_selection.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "../../base/error.hpp"
#include "../../base/text.hpp"

namespace gradientflow::engine {

std::size_t important_count(double density, std::size_t chunks) {
  if (std::isnan(density) || density <= 0.0 || density > 1.0) {
    throw Error(ErrorKind::value, "a density is above 0 and at most 1, not " + format_number(density));
  }
  constexpr double rounding = 1e-9;
  const double count = std::ceil(density * static_cast<double>(chunks) - rounding);
  return std::min(chunks, std::max(std::size_t{1}, static_cast<std::size_t>(std::max(0.0, count))));
}

std::vector<std::uint8_t> choose_important(std::span<const double> norms, std::size_t count) {
  std::vector<std::size_t> order(norms.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto last = order.begin() + static_cast<std::ptrdiff_t>(std::min(count, norms.size()));
  std::nth_element(order.begin(), last, order.end(),
                   [&](std::size_t a, std::size_t b) { return norms[a] != norms[b] ? norms[a] > norms[b] : a < b; });
  std::vector<std::uint8_t> important(norms.size(), 0);
  std::for_each(order.begin(), last, [&](std::size_t chunk) { important[chunk] = 1; });
  return important;
}

}  // namespace gradientflow::engine

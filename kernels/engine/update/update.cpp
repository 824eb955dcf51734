#include "update.hpp"

#include <algorithm>
#include <string>

#include "../../base/error.hpp"

namespace gradientflow::engine {

void Update::limit(Span elements) {
  for (Span& span : spans) {
    span = {std::max(span.begin, elements.begin), std::min(span.end, elements.end)};
  }
  std::erase_if(spans, [](const Span& span) { return span.begin >= span.end; });
}

void check_has_means(Means means, std::size_t ready, std::size_t tensors) {
  if (ready > 0) {
    throw Error(ErrorKind::value, "a step needs averaged gradients, and " + std::to_string(ready) + " of the " +
                                      std::to_string(tensors) +
                                      " tensors of the pool are ready, but not averaged: wait comes before step");
  }
  if (means == no_means) {
    throw Error(ErrorKind::value,
                "a step needs averaged gradients, and the pool has none: ready and wait come before step");
  }
}

}  // namespace gradientflow::engine

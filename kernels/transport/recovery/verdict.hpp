// Choice of the ranks that continue, by the decision of the ranks.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "consensus.hpp"

namespace gradientflow::transport {

// Returns the ranks that continue: all that are alive, if they are more than half, or if all others are known to have
// ended; with `min_ranks`, if they are at least that many. But they must not continue if a rank that has excluded them
// (Liveness::excluded_us) may continue without them, because enough ranks are not known to have ended. Otherwise throws
// Error(peer), with the same text on all of them, in which rank r is called names[r]. A rank with a negative name has
// never taken part so far: it counts only for `min_ranks`, and joins where others continue.
[[nodiscard]] std::vector<int> survivors(const Members& members, std::span<const int> names,
                                         std::optional<int> min_ranks);

}  // namespace gradientflow::transport

// Choice of the ranks that continue after a decision.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "consensus.hpp"

namespace gradientflow::transport {

// Returns the ranks that are alive, if they may continue. Otherwise throws Error(peer), with the same text on all of
// them, in which rank r is called names[r]. Without `min_ranks`, they may continue if they are more than half of the
// ranks, or if every other rank is known to have died or to have closed the communicator. With `min_ranks`, they may
// continue if they are at least that many. If a rank has excluded them (Liveness::excluded_us), that rank could
// continue without them: then the living ranks must be more than half in any case. With `min_ranks`, the other ranks
// that are possibly alive (silent or excluded_us) must also be fewer than `min_ranks`. A rank with a negative name has
// not taken part so far: it counts only for `min_ranks`, and continues only together with earlier ranks.
[[nodiscard]] std::vector<int> survivors(const Members& members, std::span<const int> names,
                                         std::optional<int> min_ranks);

}  // namespace gradientflow::transport

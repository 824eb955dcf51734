// Choice of the ranks that continue after a decision.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "consensus.hpp"

namespace gradientflow::transport {

// Returns the ranks that are alive, if they may continue. Otherwise throws Error(peer), with the same text on all of
// them, in which rank r is called names[r]. Without `min_ranks`, they may continue if they are more than half of the
// ranks, or if all remaining ranks are known to have ended. With `min_ranks`, they may continue if they are at least
// that many. If a rank has excluded them (Liveness::excluded_us), that rank could continue without them. So they must
// then be more than half in any case, and with `min_ranks`, fewer than `min_ranks` other ranks may still be alive. A
// rank with a negative name has not taken part so far: it counts only for `min_ranks`, and continues only together with
// earlier ranks.
[[nodiscard]] std::vector<int> survivors(const Members& members, std::span<const int> names,
                                         std::optional<int> min_ranks);

}  // namespace gradientflow::transport

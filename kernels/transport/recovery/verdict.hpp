// Who may go on, by what the ranks have decided.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "consensus.hpp"

namespace gradientflow::transport {

// The ranks that go on: all that are alive, if they are more than half, or if all others are known to have ended; with
// `min_ranks`, if they are at least so many. But not if one that is apart may go on without them, because so many are
// not known to have ended that these may. Else throws Error(peer), with the same text on all of them, in which rank r
// is called names[r]. One whose name is negative has never taken part so far: it does not count, but for `min_ranks`,
// and comes along where others go on.
[[nodiscard]] std::vector<int> survivors(const Members& members, std::span<const int> names,
                                         std::optional<int> min_ranks);

}  // namespace gradientflow::transport

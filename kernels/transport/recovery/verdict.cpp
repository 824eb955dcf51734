#include "verdict.hpp"

#include <algorithm>
#include <string>

#include "../../base/error.hpp"
#include "../signature.hpp"

namespace gradientflow::transport {
namespace {

std::string counted(std::size_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string name_of_missing(const Members& members, std::span<const int> names) {
  std::string text;
  for (std::size_t r = 0; r < members.size(); ++r) {
    if (members[r].liveness != Liveness::alive && names[r] >= 0) {
      text += (text.empty() ? "rank " : "; rank ") + std::to_string(names[r]) + " " + members[r].why;
    }
  }
  return text;
}

}  // namespace

std::vector<int> survivors(const Members& members, std::span<const int> names, std::optional<int> min_ranks) {
  std::vector<int> ranks = alive(members);
  const auto takes_part = [&](int rank) { return names[static_cast<std::size_t>(rank)] >= 0; };
  const auto any = [&](Liveness liveness) {
    for (std::size_t r = 0; r < members.size(); ++r) {
      if (members[r].liveness == liveness && names[r] >= 0) {
        return true;
      }
    }
    return false;
  };
  const auto present = static_cast<std::size_t>(std::count_if(ranks.begin(), ranks.end(), takes_part));
  const auto former = static_cast<std::size_t>(std::count_if(names.begin(), names.end(), [](int n) { return n >= 0; }));
  const bool are_most = 2 * present > former;
  if (present == 0) {
    throw Error(ErrorKind::peer,
                "none of the ranks that this process was to join is left: " + name_of_missing(members, names));
  }
  const auto elsewhere = std::count_if(members.begin(), members.end(), [](const Member& each) {
    return each.liveness == Liveness::silent || each.liveness == Liveness::excluded_us;
  });
  if (any(Liveness::excluded_us) && (!are_most || (min_ranks && elsewhere >= *min_ranks))) {
    std::vector<int> named;
    for (const int rank : ranks) {
      if (takes_part(rank)) {
        named.push_back(names[static_cast<std::size_t>(rank)]);
      }
    }
    throw Error(ErrorKind::peer, "the others have taken " + name_ranks(named) +
                                     " for dead, and may go on without: " + name_of_missing(members, names));
  }
  const std::string left = counted(ranks.size(), "rank") + " of " + std::to_string(former);
  if (min_ranks && static_cast<int>(ranks.size()) < *min_ranks) {
    throw Error(ErrorKind::peer, "only " + left + " can go on, fewer than min_ranks=" + std::to_string(*min_ranks) +
                                     ": " + name_of_missing(members, names));
  }
  if (!min_ranks && !are_most && any(Liveness::silent)) {
    throw Error(ErrorKind::peer,
                "only " + left +
                    " can go on, not more than half, and not all others are known to have ended: they may go on "
                    "elsewhere (recover(min_ranks=...) sets another bound): " +
                    name_of_missing(members, names));
  }
  return ranks;
}

}  // namespace gradientflow::transport

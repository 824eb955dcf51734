#include "consensus.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "../../base/error.hpp"
#include "../meeting/exchange.hpp"

namespace gradientflow::transport {
namespace {

// Kinds of a message. A message consists of its kind, the liveness of each rank, the reasons, and the values that the
// sender knows.
constexpr std::string_view found = "found";
constexpr std::string_view proposed = "proposed";
constexpr std::string_view decided = "decided";

struct ConsensusMessage {
  std::string kind;
  Members members;
  std::vector<std::string> values;
};

char digit_of(Liveness liveness) { return static_cast<char>('0' + static_cast<int>(liveness)); }

std::string packed(const ConsensusMessage& saying) {
  std::string digits;
  std::vector<std::string> parts{saying.kind, ""};
  for (const Member& each : saying.members) {
    digits += digit_of(each.liveness);
    parts.push_back(each.why);
  }
  parts[1] = digits;
  parts.insert(parts.end(), saying.values.begin(), saying.values.end());
  return pack(parts);
}

// Replaces `mine` by `known`, and returns true, if `known` outweighs `mine`.
bool add(Member& mine, const Member& known) {
  const bool is_more = known.liveness > mine.liveness || (known.liveness == mine.liveness && known.why < mine.why);
  if (is_more) {
    mine = known;
  }
  return is_more;
}

ConsensusMessage unpacked(const std::string& message, std::size_t size) {
  const std::vector<std::string> parts = unpack(message);
  const bool is_whole = parts.size() == 2 + 2 * size && parts[1].size() == size &&
                        std::all_of(parts[1].begin(), parts[1].end(), [](char each) {
                          return each >= digit_of(Liveness::alive) && each <= digit_of(Liveness::excluded_us);
                        });
  if (!is_whole) {
    throw Error(ErrorKind::mismatch, "what came is no message of a recovery");
  }
  ConsensusMessage saying{parts[0], Members(size), {}};
  for (std::size_t r = 0; r < size; ++r) {
    saying.members[r] = {static_cast<Liveness>(parts[1][r] - digit_of(Liveness::alive)), parts[2 + r]};
  }
  saying.values.assign(parts.end() - static_cast<std::ptrdiff_t>(size), parts.end());
  return saying;
}

}  // namespace

std::vector<int> alive(const Members& members) {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < members.size(); ++r) {
    if (members[r].liveness == Liveness::alive) {
      ranks.push_back(static_cast<int>(r));
    }
  }
  return ranks;
}

Consensus::Consensus(int rank, int size, std::string value)
    : rank_(rank),
      members_(static_cast<std::size_t>(size)),
      values_(static_cast<std::size_t>(size)),
      proposed_(static_cast<std::size_t>(size), members_),
      proposes_(static_cast<std::size_t>(size)) {
  values_[static_cast<std::size_t>(rank)] = std::move(value);
}

void Consensus::note(const Sign& sign) {
  if (!decision_ && add(members_[static_cast<std::size_t>(sign.rank)], {sign.liveness, sign.why})) {
    grow();
  }
}

void Consensus::propose() {
  if (!decision_ && !has_proposed_) {
    has_proposed_ = has_news_ = true;
    advance();
  }
}

void Consensus::grow() {
  has_news_ = true;
  has_proposed_ = false;
}

void Consensus::hear(int from, const std::string& message) {
  const auto sender = static_cast<std::size_t>(from);
  if (decision_ || members_[sender].liveness != Liveness::alive) {
    return;
  }
  ConsensusMessage saying = unpacked(message, members_.size());
  if (saying.members[sender].liveness != Liveness::alive ||
      saying.members[static_cast<std::size_t>(rank_)].liveness != Liveness::alive) {
    throw Error(ErrorKind::mismatch, "a message of a recovery came to a rank that it takes for dead");
  }
  if (saying.kind == decided) {
    members_ = saying.members;
    decision_ = Decision{std::move(saying.members), std::move(saying.values)};
    has_news_ = true;
    return;
  }
  values_[sender] = std::move(saying.values[sender]);
  for (std::size_t r = 0; r < members_.size(); ++r) {
    if (add(members_[r], saying.members[r])) {
      grow();
    }
    if (saying.kind == proposed) {
      add(proposed_[sender][r], saying.members[r]);
      proposes_[sender] = true;
    }
  }
  advance();
}

bool Consensus::lacks(int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  return rank != rank_ && members_[index].liveness == Liveness::alive &&
         !(proposes_[index] && proposed_[index] == members_);
}

void Consensus::advance() {
  if (!has_proposed_) {
    return;
  }
  for (std::size_t r = 0; r < members_.size(); ++r) {
    if (lacks(static_cast<int>(r))) {
      return;
    }
  }
  decision_ = Decision{members_, values_};
  for (std::size_t r = 0; r < members_.size(); ++r) {
    if (members_[r].liveness != Liveness::alive) {
      decision_->values[r].clear();
    }
  }
  has_news_ = true;
}

std::optional<std::string> Consensus::take_message() {
  return std::exchange(has_news_, false) ? std::optional(message()) : std::nullopt;
}

std::string Consensus::message() const {
  return decision_ ? packed({std::string(decided), decision_->members, decision_->values})
                   : packed({std::string(has_proposed_ ? proposed : found), members_, values_});
}

}  // namespace gradientflow::transport

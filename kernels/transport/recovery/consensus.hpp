// Agreement of the ranks of a broken endpoint on the survivors: its messages, without any transport.
//
// Every rank keeps its knowledge of all ranks, which only grows (see Liveness). Whenever it has grown, the rank sends
// it to all that it takes for alive, which add it to theirs. A rank proposes its knowledge once it has told the ranks
// that it takes for dead. It decides once all that it takes for alive have proposed exactly the same. A rank that
// decides tells all others, and a rank that is told so by a rank that it takes for alive decides the same. So no rank
// has to stay behind for later ones.
//
// Why two groups cannot both continue: let P decide that the ranks S live. All of S have proposed that, and take all
// ranks outside of S for dead for good. If then a rank of S, which has not heard of the decision, decides that the
// ranks R live, R is a part of S without P. P continues only with the agreement of all of S, or of a part of S that has
// no rank of R. But two parts have a rank in common if each is more than half of S, or lacks only ranks that have
// ended.
//
// Fewer ranks may continue where the program says so (min_ranks), as long as ranks can reach each other. Let S and R be
// two groups without a common rank. Before a rank of S proposes S, it has told each rank of R that it is taken for
// dead, and has then looked for such words from R; and vice versa. A word that has been told is found by any rank that
// looks, even by a process that was stopped meanwhile. So of a rank of S and a rank of R, the last to look has found
// the word of its counterpart, and says so in its proposal (Liveness::excluded_us): its group does not continue.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "../liveness.hpp"

namespace gradientflow::transport {

struct Member {
  Liveness liveness = Liveness::alive;
  std::string why;  // "has died: ..."; for equal standings, the first in alphabetical order counts

  friend bool operator==(const Member&, const Member&) = default;
};

// Members by rank.
using Members = std::vector<Member>;
[[nodiscard]] std::vector<int> alive(const Members& members);

// Decision, the same on all ranks that come to it.
struct Decision {
  Members members;
  std::vector<std::string> values;  // values of the ranks that are alive
};

class Consensus {
 public:
  // `value`: this rank's contribution to the decision, fixed from the start.
  Consensus(int rank, int size, std::string value);

  // Adds a finding of this rank about another rank.
  void note(const Sign& sign);
  // Adds a message from rank `from`. Throws Error(mismatch) where it is nonsense.
  void hear(int from, const std::string& message);

  // Proposes, once each rank that is not alive has been told so, or cannot be, and its words to this rank have been
  // noted.
  void propose();
  [[nodiscard]] bool has_proposed() const { return has_proposed_; }  // has proposed all that this rank knows

  // Returns the message for all ranks that are alive, if there is something new; of several only the last counts.
  [[nodiscard]] std::optional<std::string> take_message();
  [[nodiscard]] std::string message() const;  // message, new or not
  [[nodiscard]] bool has_news() const { return has_news_; }
  [[nodiscard]] const Members& members() const { return members_; }
  // Reports whether another rank is alive and has yet to propose this rank's knowledge.
  [[nodiscard]] bool lacks(int rank) const;
  [[nodiscard]] const std::optional<Decision>& decision() const { return decision_; }

 private:
  void grow();
  void advance();

  int rank_;
  Members members_;
  std::vector<std::string> values_;
  std::vector<Members> proposed_;  // all that each rank has proposed so far, in any order of arrival
  std::vector<bool> proposes_;     // each rank that has proposed
  std::optional<Decision> decision_;
  bool has_proposed_ = false;
  bool has_news_ = true;
};

}  // namespace gradientflow::transport

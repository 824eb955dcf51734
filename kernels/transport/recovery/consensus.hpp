// Agreement of the ranks of a broken endpoint on the survivors. This file makes and reads its messages, and sends none.
//
// Every rank keeps its knowledge of all ranks, which only grows (see Liveness). Whenever this knowledge has grown, the
// rank sends it to all ranks that it takes for alive, and each of them adds it to its own. A rank proposes its
// knowledge once it has told the ranks that it takes for dead. It decides once all ranks that it takes for alive have
// proposed exactly the same knowledge. Then it sends them the decision. A rank that receives a decision from a rank
// that it takes for alive decides the same. So no rank has to stay until later ranks decide.
//
// Why two groups cannot both continue: let rank P decide that the ranks S live. Then all of S have proposed this, and
// take all ranks outside of S for dead forever. Suppose that a rank of S has not heard of this decision, and decides
// that the ranks R live. Then R is a part of S without P, and P can continue only with a part of S that has no rank of
// R. But a part continues only if it is more than half of S, or lacks only ranks that have ended: two such parts share
// a rank.
//
// Fewer ranks may continue if the program allows it (min_ranks), as long as ranks can reach each other. Let S and R be
// two groups without a common rank. Before a rank of S proposes S, it tells each rank of R that the ranks of R are
// taken for dead, and then looks for such messages from R. The ranks of R do the same. A rank that looks finds every
// message sent before, even if its process was stopped meanwhile. Compare a rank of S and a rank of R: the last to look
// finds the message of its counterpart, and reports it in its proposal (Liveness::excluded_us). Its group does not
// continue.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "../liveness.hpp"

namespace gradientflow::transport {

struct Member {
  Liveness liveness = Liveness::alive;
  std::string why;  // "has died: ..."; of several reasons for one liveness, the first in alphabetical order counts

  friend bool operator==(const Member&, const Member&) = default;
};

// Members by rank.
using Members = std::vector<Member>;
[[nodiscard]] std::vector<int> alive(const Members& members);

// Decision, the same on all ranks that decide.
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
  // Adds a message from rank `from`. Throws Error(mismatch) if the message is malformed, or counts its sender or this
  // rank as not alive.
  void hear(int from, const std::string& message);

  // Proposes this rank's knowledge. Call it once each rank that is not alive has been told, or cannot be told, and
  // messages of exclusion from these ranks have been noted.
  void propose();
  [[nodiscard]] bool has_proposed() const { return has_proposed_; }  // true if this rank has proposed all that it knows

  // Returns the message for all ranks that are alive, if this rank has news. A later message replaces earlier ones.
  [[nodiscard]] std::optional<std::string> take_message();
  [[nodiscard]] std::string message() const;  // present message, even without news
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
  std::vector<Members> proposed_;  // union of all proposals of each rank so far, in any order of arrival
  std::vector<bool> proposes_;     // true for each rank that has proposed
  std::optional<Decision> decision_;
  bool has_proposed_ = false;
  bool has_news_ = true;
};

}  // namespace gradientflow::transport

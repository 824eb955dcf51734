// How the ranks of a broken endpoint agree on who is left: what each says and hears, without any transport.
//
// Every rank keeps what it knows of the others, which only ever grows (see Standing), and tells it to all that it takes
// for alive whenever it has grown. What others tell is added. A rank proposes what it knows once it has told those that
// it takes for dead. It decides once all that it takes for alive have proposed exactly what it has proposed itself;
// whoever decides tells the others, and whoever is told so by a rank that it takes for alive decides the same. So
// nobody has to stay behind for those who come later.
//
// Why two groups cannot both go on: let P decide that the ranks S live. All of S have said so, and take everybody
// outside of S for dead for good. If then a rank of S, which has not heard of that, decides that the ranks R live, R is
// a part of S without P. P goes on only with the agreement of all of S, or of a part of S that has no rank of R; but
// of two parts that each are more than half of S, or that lack only ranks that have ended, both hold some rank.
//
// Fewer may go on where the program says so (min_ranks), as long as ranks can reach each other. Let S and R be two
// groups without a common rank. Before a rank of S proposes S, it has told each of R that it is taken for dead, and has
// looked after that for such words from R; and the other way round. A word that has been told is found by whoever
// looks, even a process that was stopped meanwhile. So of any two ranks, one of S and one of R, the one that looked
// last has found the word of the other one, and says so in its proposal (Standing::apart): its group does not go on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "../standing.hpp"

namespace gradientflow::transport {

struct Member {
  Standing standing = Standing::alive;
  std::string why;  // "has died: ..."; of an equal standing, the text that comes first counts

  friend bool operator==(const Member&, const Member&) = default;
};

// By rank.
using Members = std::vector<Member>;
[[nodiscard]] std::vector<int> alive(const Members& members);

// The same on all ranks that come to it.
struct Decision {
  Members members;
  std::vector<std::string> values;  // of the ranks that are alive
};

class Consensus {
 public:
  // `value`: what this rank says beside, once and for all.
  Consensus(int rank, int size, std::string value);

  // What this rank has found out about another one.
  void note(const Sign& sign);
  // What rank `from` has sent. Throws Error(mismatch) where it is nonsense.
  void hear(int from, const std::string& message);

  // All that are not alive have been told so, or cannot be, and what they have told this rank has been noted.
  void propose();
  [[nodiscard]] bool has_proposed() const { return has_proposed_; }  // all that this rank knows

  // What is to be sent to all ranks that are alive, if there is something new; of several only the last counts.
  [[nodiscard]] std::optional<std::string> take_message();
  [[nodiscard]] std::string message() const;  // the same, new or not
  [[nodiscard]] bool has_news() const { return has_news_; }
  [[nodiscard]] const Members& members() const { return members_; }
  // Whether another rank is alive and has yet to propose what this one knows.
  [[nodiscard]] bool lacks(int rank) const;
  [[nodiscard]] const std::optional<Decision>& decision() const { return decision_; }

 private:
  void grow();
  void advance();

  int rank_;
  Members members_;
  std::vector<std::string> values_;
  std::vector<Members> proposed_;  // by rank: all that it has proposed so far, in whatever order that came
  std::vector<bool> proposes_;     // whether it has
  std::optional<Decision> decision_;
  bool has_proposed_ = false;
  bool has_news_ = true;
};

}  // namespace gradientflow::transport

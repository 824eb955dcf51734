// How the ranks of a broken endpoint agree on who is left: what each says and hears, without any transport.
//
// Every rank keeps what it knows of the others, which only ever grows (see Standing), and tells it to all that it takes
// for alive whenever it has grown. What others tell is added. A rank decides once all that it takes for alive have said
// exactly what it has said itself; whoever decides tells the others, and whoever is told so by a rank that it
// takes for alive decides the same. So nobody has to stay behind for those who come later.
//
// Why two groups cannot both go on: let P decide that the ranks S live. All of S have said so, and take everybody
// outside of S for dead for good. If then a rank of S, which has not heard of that, decides that the ranks R live, R is
// a part of S without P. P goes on only with the agreement of all of S, or of a part of S that has no rank of R; but
// of two parts that each are more than half of S, or that lack only ranks that have ended, both hold some rank.
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

  // What is to be sent to all ranks that are alive, if there is something new; of several only the last counts.
  [[nodiscard]] std::optional<std::string> take_message();
  [[nodiscard]] bool has_news() const { return has_news_; }  // whether there is
  [[nodiscard]] const Members& members() const { return members_; }
  // Whether another rank is alive and has yet to say what this one says.
  [[nodiscard]] bool lacks(int rank) const;
  [[nodiscard]] const std::optional<Decision>& decision() const { return decision_; }

 private:
  void advance();
  [[nodiscard]] std::string message() const;

  int rank_;
  Members members_;
  std::vector<std::string> values_;
  std::vector<Members> said_;  // by rank: all that it has said so far, in whatever order that came
  std::vector<bool> has_said_;
  std::optional<Decision> decision_;
  bool has_news_ = true;
};

}  // namespace gradientflow::transport

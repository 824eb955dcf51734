// Agreement: before a call between nodes moves data, all ranks check that all make the same call. The leaders (first
// ranks) of the nodes exchange statements about the call. Data travel with the statements, so that little or no work is
// left for a small tensor. All ranks learn of any difference.
//
//   few nodes    every leader sends to all other leaders: one step
//   many nodes   recursive doubling: log2 N steps
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "../../base/config.hpp"
#include "../../compute/kernels.hpp"
#include "../../transport/messages/messages.hpp"
#include "recursive_doubling.hpp"

namespace gradientflow::collective {

// Largest number of bytes that travel along with a statement.
inline constexpr std::size_t largest_along = 128 * kib;

// A statement about a call, combined over ranks.
struct Statement {
  transport::Signature signature;
  bool same = true;    // no rank has made another call
  bool mapped = true;  // the tensors of each node's ranks lie in memory that these ranks share
};

// A leader's side of the agreement.
class Agreement {
 public:
  // `leaders`: the first ranks of all nodes; `index`: this node's leader.
  Agreement(transport::Messages& messages, std::vector<int> leaders, std::size_t index);

  [[nodiscard]] const std::vector<int>& leaders() const { return leaders_; }

  // Tells if every leader sends to all other leaders.
  [[nodiscard]] static bool is_direct(int nodes) { return nodes <= 8; }

  // Returns the combined statement of all leaders; for few nodes. parts[i], unless `parts` is empty, travels to leader
  // i; received() returns the parts from other leaders. Parts for one leader, its own included, must be of equal size.
  Statement agree_directly(Statement word, std::span<const std::span<const std::byte>> parts);
  [[nodiscard]] const std::byte* received(std::size_t leader) const {
    return incoming_[leader].data() + sizeof(Statement);
  }

  // Returns the combined statement of all leaders, and reduces the payload over them; for many nodes.
  Statement agree_by_doubling(Statement word, std::span<std::byte> payload, const compute::Reduction& how);

 private:
  transport::Request send(std::size_t leader, const Statement& word, std::span<const std::byte> data);
  transport::Request receive(std::size_t leader);

  // Combines a leader's message, `bytes` long, with `word`. Tells if its `expected` bytes of data are valid.
  bool receive(Statement& word, std::size_t leader, std::size_t bytes, std::size_t expected) const;

  transport::Messages& messages_;
  std::vector<int> leaders_;
  std::size_t index_;
  std::vector<Round> rounds_;
  std::vector<std::vector<std::byte>> outgoing_;  // statement and data to each leader; doubling uses only the first
  std::vector<std::vector<std::byte>> incoming_;
};

}  // namespace gradientflow::collective

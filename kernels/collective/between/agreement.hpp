// The agreement: before a call between nodes moves data, all ranks check that all make the same call. The leaders
// (first ranks) of the nodes exchange statements about it. Data travel along, so that little or nothing is left to do
// for a small tensor. All ranks learn of any difference.
//
//   few nodes    every leader sends to every other one: one step
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

// The most bytes that travel along with a statement.
inline constexpr std::size_t largest_along = 128 * kib;

// A statement about a call, combined over ranks.
struct Statement {
  transport::Signature signature;
  bool same = true;    // no rank has made another call
  bool mapped = true;  // on every node the tensors of all ranks lie in memory that they share
};

// A leader's side of the agreement.
class Agreement {
 public:
  // `leaders`: the first ranks of all nodes; `index`: this node's leader among them.
  Agreement(transport::Messages& messages, std::vector<int> leaders, std::size_t index);

  [[nodiscard]] const std::vector<int>& leaders() const { return leaders_; }

  // Whether every leader sends to every other one.
  [[nodiscard]] static bool is_direct(int nodes) { return nodes <= 8; }

  // The combined statement of all leaders, with few nodes. `parts`, by leader, are sent along, unless there are none;
  // received() gives those of the others. All parts for the same leader must be of equal size.
  Statement agree_directly(Statement word, std::span<const std::span<const std::byte>> parts);
  [[nodiscard]] const std::byte* received(std::size_t leader) const {
    return incoming_[leader].data() + sizeof(Statement);
  }

  // The same with many nodes: the payload is reduced over all leaders.
  Statement agree_by_doubling(Statement word, std::span<std::byte> payload, const compute::Reduction& how);

 private:
  transport::Request send(std::size_t leader, const Statement& word, std::span<const std::byte> data);
  transport::Request receive(std::size_t leader);

  // Combines a leader's message, `bytes` long, with `word`. Returns whether its `expected` bytes of data are valid.
  bool receive(Statement& word, std::size_t leader, std::size_t bytes, std::size_t expected) const;

  transport::Messages& messages_;
  std::vector<int> leaders_;
  std::size_t index_;
  std::vector<Round> rounds_;
  std::vector<std::vector<std::byte>> outgoing_;  // by leader: a statement, then data; doubling uses only the first
  std::vector<std::vector<std::byte>> incoming_;
};

}  // namespace gradientflow::collective

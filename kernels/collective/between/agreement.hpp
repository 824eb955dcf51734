// Before a call between nodes moves data, all ranks hear of it from all others: the first ranks of the nodes exchange a
// word, and data along with it, so that little or nothing is left to do for a small tensor. A difference anywhere
// reaches everybody.
//
//   few nodes    everybody sends to everybody: one step
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

// No more than so many bytes go along with a word.
inline constexpr std::size_t largest_along = 128 * kib;

// What is told about a call, combined over all ranks.
struct Statement {
  transport::Signature signature;
  bool same = true;    // no rank has made another call
  bool mapped = true;  // on every node the tensors of all ranks lie in memory that they share
};

// What one of the nodes' first ranks does to agree.
class Agreement {
 public:
  // `leaders`: the first ranks of all nodes; `index`: this one's place among them.
  Agreement(transport::Messages& messages, std::vector<int> leaders, std::size_t index);

  [[nodiscard]] const std::vector<int>& leaders() const { return leaders_; }

  // Whether everybody sends to everybody.
  [[nodiscard]] static bool is_direct(int nodes) { return nodes <= 8; }

  // What all of them say. With few nodes: `parts`, by leader, go to each of them, and received() is what came; nothing
  // at all may go along. All leaders' parts for one of them must be of equal size.
  Statement agree_directly(Statement word, std::span<const std::span<const std::byte>> parts);
  [[nodiscard]] const std::byte* received(std::size_t leader) const {
    return incoming_[leader].data() + sizeof(Statement);
  }

  // With many nodes: the payload becomes its sum over all of them.
  Statement agree_by_doubling(Statement word, std::span<std::byte> payload, const compute::Reduction& how);

 private:
  transport::Message send(std::size_t leader, const Statement& word, std::span<const std::byte> data);
  transport::Message receive(std::size_t leader);

  // Combines what a leader said, `bytes` long, with `word`. Returns whether its data can be used, `expected` bytes.
  bool hear(Statement& word, std::size_t leader, std::size_t bytes, std::size_t expected) const;

  transport::Messages& messages_;
  std::vector<int> leaders_;
  std::size_t index_;
  std::vector<Round> rounds_;
  std::vector<std::vector<std::byte>> outgoing_;  // by leader: a word, then data; by doubling the first is enough
  std::vector<std::vector<std::byte>> incoming_;
};

}  // namespace gradientflow::collective

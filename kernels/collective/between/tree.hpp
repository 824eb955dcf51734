// Broadcast and reduce along a tree over all ranks. Small tensors use a binomial tree, with the fewest steps. Large
// tensors use a chain: every link carries the tensor once, and all links work at once.
//
// The ranks are ordered with the root first and the ranks of a node next to each other, so that few edges of the tree
// connect nodes.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "../../transport/topology.hpp"
#include "../call/call.hpp"
#include "../call/partial_reduction.hpp"
#include "lane.hpp"

namespace gradientflow::collective {

enum class Shape { binomial, chain };

// A rank's neighbors in the tree, as positions in the order.
struct Branch {
  std::optional<std::size_t> parent;  // absent at the root
  std::vector<std::size_t> children;
};

// Finds the neighbors of `place`.
[[nodiscard]] Branch branch_of(Shape shape, std::size_t ranks, std::size_t place);

// Returns all ranks, the root's node first and the root first in it.
[[nodiscard]] std::vector<int> order_from(const transport::Topology& topology, int root);

// Run on the lane of all ranks.
void tree_broadcast(const Lane& lane, const Call& call, const transport::Topology& topology, Shape shape);
void tree_reduce(const Lane& lane, const Call& call, const transport::Topology& topology, Shape shape,
                 Scratch& scratch);

}  // namespace gradientflow::collective

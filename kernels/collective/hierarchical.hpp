// Allreduce in two levels: shared memory inside a node, messages between nodes.
//
// As in the GradientFlow paper (section 2.4) there are three phases: reduce in the node, allreduce among one rank of
// each node (the masters), broadcast in the node. Here the phases overlap: a master reads the tensors of its node in
// place, segment by segment, when it sends them, and writes each segment of the result to all tensors of the node as it
// arrives.
//
//   one lane   the first rank of every node drives the whole tensor
//   lanes      every local rank drives its own slice, with the ranks of the same local rank on all nodes; there are as
//              many lanes as the smallest node has ranks
//
// Tensors in ordinary memory pass through node memory in stretches: the ranks copy the next stretch in and the last
// stretch out, while the masters exchange the stretch in between.
#pragma once

#include "../transport/node/node.hpp"
#include "../transport/topology.hpp"
#include "between/lane.hpp"
#include "call/call.hpp"
#include "select/selector.hpp"

namespace gradientflow::collective {

struct Levels {
  transport::Messages& messages;
  transport::Node& node;
  const transport::Topology& topology;
  Segments segments;
  bool lanes;
  Between between;
};

// Tensors of this node's ranks, by local rank, mapped here.
struct NodeTensors {
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
};

// Returns the ranks that drive lanes.
[[nodiscard]] std::vector<int> drivers(const transport::Topology& topology, bool lanes);

// Returns the number of elements of the result that were rounded for the wire and are not finite.
std::size_t hierarchical(const Levels& levels, const Call& call, const NodeTensors& tensors, Scratch& scratch);

// Slots of `staging` per rank of the node. Three suffice although a stretch and its result share a slot: stretch k + 3
// is copied in only after all ranks have worked on stretch k + 1, and each rank copies the result of stretch k out
// before that work.
inline constexpr std::size_t staging_slots = 3;

// Reduces ordinary arrays through `staging`.
std::size_t hierarchical_staged(const Levels& levels, const Call& call, const transport::Segment& staging,
                                Scratch& scratch);

}  // namespace gradientflow::collective

#include "hierarchical.hpp"

#include <algorithm>

#include "between/pairwise_allreduce.hpp"
#include "between/recursive_doubling.hpp"
#include "between/ring.hpp"
#include "in_node/pipeline.hpp"

namespace gradientflow::collective {
namespace {

std::size_t number_of_lanes(const transport::Topology& topology, bool lanes) {
  std::size_t smallest = 1;
  if (lanes) {
    smallest = std::min_element(topology.members.begin(), topology.members.end(), [](const auto& a, const auto& b) {
                 return a.size() < b.size();
               })->size();
  }
  return smallest;
}

// Drives this rank's lane: the allreduce of its slice between nodes.
class Driver {
 public:
  Driver(const Levels& levels, const transport::Signature& signature)
      : levels_(levels),
        lanes_(number_of_lanes(levels.topology, levels.lanes)),
        index_(static_cast<std::size_t>(levels.node.rank())),
        how_{{signature.dtype, signature.op, levels.messages.size()}, signature.wire} {}

  [[nodiscard]] std::size_t lanes() const { return lanes_; }

  // Returns the slice of `count` elements that lane `lane` carries.
  [[nodiscard]] Range slice_of(std::size_t count, std::size_t lane) const {
    return slice(count, lanes_, lane, 64 / size_of(how_.parts.dtype));
  }

  // Drives this rank's lane, if any, over tensors of `count` elements. Results go to `outputs`, this rank's first.
  void drive(std::size_t count, std::vector<const std::byte*> inputs, std::vector<std::byte*> outputs,
             Scratch& scratch) {
    const Range mine = index_ < lanes_ ? slice_of(count, index_) : Range{};
    if (mine.size() == 0) {
      return;
    }
    const std::size_t offset = mine.begin * size_of(how_.parts.dtype);
    std::for_each(inputs.begin(), inputs.end(), [&](auto& address) { address += offset; });
    std::for_each(outputs.begin(), outputs.end(), [&](auto& address) { address += offset; });
    Operands operands(std::move(inputs), std::move(outputs), mine.size(), how_);
    Lane lane{levels_.messages, {}, static_cast<std::size_t>(levels_.topology.node()), levels_.segments};
    for (const auto& members : levels_.topology.members) {
      lane.ranks.push_back(members[index_]);
    }
    if (lane.size() == 1) {
      operands.conclude_alone();
    } else {
      run_between(lane, operands, scratch);
    }
    nonfinite_ += operands.nonfinite();
  }

  // Waits for the node's peers, and returns the sum of its drivers' nonfinite counts.
  [[nodiscard]] std::size_t finish() const {
    levels_.node.tell(transport::Node::Topic::result, nonfinite_);
    levels_.node.synchronize();
    std::size_t sum = 0;
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      sum += levels_.node.told(transport::Node::Topic::result, static_cast<int>(lane));
    }
    return sum;
  }

 private:
  void run_between(const Lane& lane, Operands& operands, Scratch& scratch) const {
    switch (levels_.between) {
      case Between::ring:
        ring_allreduce(lane, operands, scratch);
        return;
      case Between::recursive_doubling:
        recursive_doubling(lane, operands, scratch);
        return;
      case Between::pairwise:
        pairwise_allreduce(lane, operands, scratch);
        return;
    }
  }

  const Levels& levels_;
  std::size_t lanes_;
  std::size_t index_;
  Operands::How how_;
  std::size_t nonfinite_ = 0;
};

}  // namespace

std::vector<int> drivers(const transport::Topology& topology, bool lanes) {
  const auto number = static_cast<std::ptrdiff_t>(number_of_lanes(topology, lanes));
  std::vector<int> ranks;
  for (const auto& members : topology.members) {
    ranks.insert(ranks.end(), members.begin(), members.begin() + number);
  }
  return ranks;
}

std::size_t hierarchical(const Levels& levels, const Call& call, const NodeTensors& tensors, Scratch& scratch) {
  Driver driver(levels, call.signature);
  std::vector<std::byte*> outputs = tensors.outputs;
  std::swap(outputs.front(), outputs[static_cast<std::size_t>(levels.node.rank())]);
  driver.drive(call.signature.count, tensors.inputs, std::move(outputs), scratch);
  return driver.finish();
}

std::size_t hierarchical_staged(const Levels& levels, const Call& call, const transport::Segment& staging,
                                Scratch& scratch) {
  const std::size_t element = call.element();
  const std::size_t slot_bytes = staging.stride() / staging_slots / 64 * 64;
  const std::size_t length = slot_bytes / element;
  const std::size_t stretches = std::max<std::size_t>(pieces(call.signature.count, length), 1);
  const auto stretch = [&](std::size_t k) { return piece({0, call.signature.count}, length, k); };
  const auto slot = [&](std::size_t local, std::size_t k) {
    return staging.part(static_cast<int>(local)) + (k % staging_slots) * slot_bytes;
  };
  const auto me = static_cast<std::size_t>(levels.node.rank());
  Driver driver(levels, call.signature);

  const auto in = [&](std::size_t k) {
    compute::copy(slot(me, k), call.input + stretch(k).begin * element, stretch(k).size() * element,
                  compute::Store::cached);
  };
  const auto work = [&](std::size_t k) {
    std::vector<const std::byte*> inputs;
    for (std::size_t local = 0; local < static_cast<std::size_t>(levels.node.size()); ++local) {
      inputs.push_back(slot(local, k));
    }
    driver.drive(stretch(k).size(), std::move(inputs), {slot(me, k)}, scratch);
  };
  // Copies each lane's result from its driver's slot.
  const auto out = [&](std::size_t k) {
    for (std::size_t lane = 0; lane < driver.lanes(); ++lane) {
      const Range part = driver.slice_of(stretch(k).size(), lane);
      compute::copy(call.output + (stretch(k).begin + part.begin) * element, slot(lane, k) + part.begin * element,
                    part.size() * element, compute::Store::cached);
    }
  };
  pipeline(levels.node, stretches, in, work, out);
  return driver.finish();
}

}  // namespace gradientflow::collective

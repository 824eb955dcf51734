#include "tree.hpp"

#include <algorithm>

namespace gradientflow::collective {
namespace {

using transport::Purpose;
using transport::Request;

// Ranks above and below this rank.
struct Relatives {
  std::optional<int> parent;
  std::vector<int> children;
};

Relatives relatives_of(const Lane& lane, const transport::Topology& topology, int root, Shape shape) {
  const std::vector<int> order = order_from(topology, root);
  const auto place = std::find(order.begin(), order.end(), lane.messages.rank()) - order.begin();
  const Branch branch = branch_of(shape, order.size(), static_cast<std::size_t>(place));
  Relatives relatives;
  if (branch.parent) {
    relatives.parent = order[*branch.parent];
  }
  for (const std::size_t child : branch.children) {
    relatives.children.push_back(order[child]);
  }
  return relatives;
}

}  // namespace

Branch branch_of(Shape shape, std::size_t ranks, std::size_t place) {
  Branch branch;
  if (shape == Shape::chain) {
    if (place > 0) {
      branch.parent = place - 1;
    }
    if (place + 1 < ranks) {
      branch.children.push_back(place + 1);
    }
    return branch;
  }
  // The parent is `place` without its lowest set bit; the root's place is 0.
  const std::size_t lowest = place == 0 ? ranks : place & (~place + 1);
  if (place > 0) {
    branch.parent = place - lowest;
  }
  for (std::size_t distance = 1; distance < lowest && place + distance < ranks; distance *= 2) {
    branch.children.push_back(place + distance);
  }
  std::reverse(branch.children.begin(), branch.children.end());  // child with the largest subtree first
  return branch;
}

std::vector<int> order_from(const transport::Topology& topology, int root) {
  std::vector<int> order = {root};
  const int first = topology.node_of[static_cast<std::size_t>(root)];
  for (int i = 0; i < topology.nodes(); ++i) {
    for (const int r : topology.members[static_cast<std::size_t>((first + i) % topology.nodes())]) {
      if (r != root) {
        order.push_back(r);
      }
    }
  }
  return order;
}

void tree_broadcast(const Lane& lane, const Call& call, const transport::Topology& topology, Shape shape) {
  const Relatives relatives = relatives_of(lane, topology, call.signature.root, shape);
  const std::size_t segments = pieces(call.bytes(), lane.segments.bytes);
  const std::size_t window = std::max<std::size_t>(std::min(lane.segments.window, segments), 1);
  const auto range_of = [&](std::size_t t) { return piece({0, call.bytes()}, lane.segments.bytes, t); };
  std::vector<Request> incoming(window);
  std::vector<std::vector<Request>> outgoing(relatives.children.size());
  for (auto& stream : outgoing) {
    stream.resize(window);
  }
  const auto post = [&](std::size_t t) {
    return relatives.parent && t < segments ? lane.messages.receive(*relatives.parent, Purpose::data,
                                                                    call.output + range_of(t).begin, range_of(t).size())
                                            : Request();
  };
  for (std::size_t t = 0; t < window; ++t) {
    incoming[t] = post(t);
  }
  const std::byte* const source = relatives.parent ? call.output : call.input;
  for (std::size_t t = 0; t < segments; ++t) {
    lane.messages.wait(incoming[t % window]);
    incoming[t % window] = post(t + window);
    for (std::size_t child = 0; child < outgoing.size(); ++child) {
      lane.messages.wait(outgoing[child][t % window]);
      outgoing[child][t % window] =
          lane.messages.send(relatives.children[child], Purpose::data, source + range_of(t).begin, range_of(t).size());
    }
  }
  for (auto& stream : outgoing) {
    for (Request& message : stream) {
      lane.messages.wait(message);
    }
  }
}

// Reduces this rank's values and the sums of its children, in their order, and sends the sum to its parent.
void tree_reduce(const Lane& lane, const Call& call, const transport::Topology& topology, Shape shape,
                 Scratch& scratch) {
  const Relatives relatives = relatives_of(lane, topology, call.signature.root, shape);
  const std::size_t element = call.element();
  const std::size_t segment = lane.segments.bytes / element;
  const std::size_t segments = pieces(call.signature.count, segment);
  const std::size_t window = std::max<std::size_t>(std::min(lane.segments.window, segments), 1);
  const std::size_t children = relatives.children.size();
  const auto range_of = [&](std::size_t t) { return piece({0, call.signature.count}, segment, t); };
  const auto slot = [&](std::size_t child, std::size_t t) {
    return scratch.at((child + 1) * window + t % window, lane.segments.bytes);
  };
  std::vector<std::vector<Request>> incoming(children);
  std::vector<Request> outgoing(window);
  const auto post = [&](std::size_t child, std::size_t t) {
    return t < segments ? lane.messages.receive(relatives.children[child], Purpose::data, slot(child, t),
                                                range_of(t).size() * element)
                        : Request();
  };
  for (std::size_t child = 0; child < children; ++child) {
    for (std::size_t t = 0; t < window; ++t) {
      incoming[child].push_back(post(child, t));
    }
  }
  const PartialReduction parts{call.signature.dtype, call.signature.op, lane.messages.size()};
  std::vector<const void*> sources(children + 1);
  for (std::size_t t = 0; t < segments; ++t) {
    const Range range = range_of(t);
    sources[0] = call.input + range.begin * element;
    for (std::size_t child = 0; child < children; ++child) {
      lane.messages.wait(incoming[child][t % window]);
      sources[child + 1] = slot(child, t);
    }
    lane.messages.wait(outgoing[t % window]);
    std::byte* const sum =
        relatives.parent ? scratch.at(t % window, lane.segments.bytes) : call.output + range.begin * element;
    void* const target = sum;
    if (parts.divides_first()) {
      compute::reduce({&target, 1}, {sources.data(), 1}, range.size(), parts.begin());
      sources[0] = sum;
    }
    const bool as_it_is = relatives.parent && children == 0 && !parts.divides_first();
    if (!as_it_is) {
      compute::reduce({&target, 1}, sources, range.size(), relatives.parent ? parts.join() : parts.finish());
    }
    for (std::size_t child = 0; child < children; ++child) {
      incoming[child][t % window] = post(child, t + window);
    }
    if (relatives.parent) {
      outgoing[t % window] = lane.messages.send(
          *relatives.parent, Purpose::data,
          as_it_is ? call.input + range.begin * element : static_cast<const std::byte*>(sum), range.size() * element);
    }
  }
  for (Request& message : outgoing) {
    lane.messages.wait(message);
  }
}

}  // namespace gradientflow::collective

#include "one_pass.hpp"

#include <vector>

#include "partition.hpp"
#include "pull.hpp"

namespace gradientflow::collective {

void one_pass(transport::Node& node, const Call& call, const PeerMemory& inputs, const PeerMemory& outputs,
              compute::Store store) {
  const std::size_t element = call.element();
  const Range mine = slice(call.signature.count, static_cast<std::size_t>(node.size()),
                           static_cast<std::size_t>(node.rank()), 64 / element);
  const int root = node.local_rank_of(call.signature.root);
  std::vector<std::byte*> destinations;
  for (int local = 0; local < node.size(); ++local) {
    if (call.signature.kind == transport::CallKind::allreduce || local == root) {
      destinations.push_back(outputs.at(local) + mine.begin * element);
    }
  }
  reduce_range(node, call, inputs, mine.begin, mine.end, destinations, store);
  node.synchronize();
}

}  // namespace gradientflow::collective

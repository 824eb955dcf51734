#include "one_pass.hpp"

#include "../../base/config.hpp"
#include "../../base/short_array.hpp"
#include "../call/partition.hpp"
#include "read_peers.hpp"

namespace gradientflow::collective {
namespace {

constexpr std::size_t task_bytes = 256 * kib;

}  // namespace

void one_pass(transport::Node& node, const Call& call, const PeerMemory& inputs, const PeerMemory& outputs,
              compute::Store store) {
  const std::size_t element = call.element();
  const auto slice_of = [&](int local) {
    return slice(call.signature.count, static_cast<std::size_t>(node.size()), static_cast<std::size_t>(local),
                 64 / element);
  };
  const std::size_t length = task_bytes / element;
  const int root = node.local_rank_of(call.signature.root);
  const bool to_all = call.signature.kind == transport::CallKind::allreduce;
  ShortArray<std::byte*> destinations(to_all ? static_cast<std::size_t>(node.size()) : 1);
  const auto task = [&](int owner, std::uint32_t index) {
    const Range part = piece(slice_of(owner), length, index);
    for (std::size_t i = 0; i < destinations.size(); ++i) {
      destinations[i] = outputs.at(to_all ? static_cast<int>(i) : root) + part.begin * element;
    }
    reduce_range(node, call, inputs, part.begin, part.end, destinations, store);
  };
  node.share(static_cast<std::uint32_t>(pieces(slice_of(0).size(), length)), task);
}

}  // namespace gradientflow::collective

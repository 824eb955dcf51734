#include "selector.hpp"

#include <array>

#include "../base/error.hpp"

namespace gradientflow::collective {
namespace {

constexpr std::array<std::string_view, 6> paths = {"alone", "announcement", "node_memory", "direct", "staged", "mpi"};

}  // namespace

std::string_view name_of(Path path) { return paths.at(static_cast<std::size_t>(path)); }

Path select(const Situation& situation, const Config& config) {
  using transport::Algorithm;
  using transport::CallKind;
  switch (situation.algorithm) {
    case Algorithm::mpi:
      return Path::mpi;
    case Algorithm::shared:
      if (situation.nodes > 1) {
        throw Error(ErrorKind::value, "algorithm 'shared' works inside one node, but the ranks are on " +
                                          std::to_string(situation.nodes) + " nodes; use 'auto' or 'mpi'");
      }
      break;
    case Algorithm::automatic:
      if (situation.nodes > 1) {
        return Path::mpi;
      }
      break;
  }
  if (situation.ranks == 1) {
    return Path::alone;
  }
  if (situation.bytes <= config.inline_bytes) {
    return Path::announcement;
  }
  if (situation.in_node_memory) {
    return Path::node_memory;
  }
  if (situation.direct_read_allowed && situation.bytes >= config.direct_read_bytes &&
      situation.kind != CallKind::reduce) {
    return Path::direct;
  }
  return Path::staged;
}

}  // namespace gradientflow::collective

#include "selector.hpp"

#include <algorithm>
#include <initializer_list>
#include <string>

#include "../../base/error.hpp"
#include "../between/agreement.hpp"

namespace gradientflow::collective {
namespace {

using transport::Algorithm;
using transport::CallKind;

constexpr std::size_t chain_bytes = 64 * kib;     // least size of a chain in broadcast and reduce
constexpr std::size_t pairwise_bytes = 16 * kib;  // largest size of a pairwise allgather

Choice choose_inside_node(const Situation& s, const Config& config) {
  if (s.bytes <= config.inline_bytes) {
    return {Path::announcement, "small enough for the announcement (inline_bytes)"};
  }
  if (s.in_node_memory) {
    return in_one_segment;
  }
  const bool staged_at_any_size = s.kind == CallKind::allreduce || s.kind == CallKind::reduce;
  if (s.direct_read_allowed && s.bytes >= config.direct_read_bytes && !staged_at_any_size) {
    return {Path::direct, "ordinary arrays, from direct_read_bytes on"};
  }
  return {Path::staged, "ordinary arrays"};
}

// Chooses the algorithm between nodes. Between two nodes recursive doubling moves as many bytes as a ring, and no step
// waits for another. Between more nodes it has fewer steps than a ring, but moves more bytes than a ring or pairwise
// exchange. Pairwise exchange has fewer steps than a ring; a ring does not send from every node to all others.
Choice choose_between(const Situation& s, const Config& config) {
  if (s.nodes == 2) {
    return {Path::recursive_doubling, "two nodes", Between::recursive_doubling};
  }
  if (s.bytes < config.doubling_bytes) {
    return {Path::recursive_doubling, "below doubling_bytes", Between::recursive_doubling};
  }
  if (s.bytes < config.ring_bytes) {
    return {Path::pairwise, "between doubling_bytes and ring_bytes", Between::pairwise};
  }
  return {Path::ring, "from ring_bytes on", Between::ring};
}

// Returns the bytes of the largest tensor that travels with the agreement on a call. With one rank per node the
// agreement replaces recursive doubling. With more ranks per node, the announcements inside the nodes must hold the
// tensor too. Over MPI a message longer than a segment may wait for its receiver; over TCP such a message is faster
// than an agreement and two segments. TCP's larger limit holds for two nodes only, where both ways give the same bits:
// results must not depend on the transport.
std::size_t agreement_limit(const Situation& s, const Config& config) {
  if (s.largest_node > 1) {
    return std::min(config.inline_bytes, config.staging_bytes);
  }
  if (s.nodes > 2) {
    return std::min({config.doubling_bytes, config.segment_bytes, largest_along});
  }
  return std::min(s.transport.eager_segments * config.segment_bytes, largest_along);
}

// Chooses by the table of allreduce between nodes, as measured (docs/benchmarks.md).
Choice choose_allreduce(const Situation& s, const Config& config) {
  if (s.bytes <= agreement_limit(s, config) && !s.wire) {
    return {Path::agreement, "small enough to travel along with the agreement"};
  }
  Choice choice = choose_between(s, config);
  if (s.largest_node > 1 && s.smallest_node == 1) {
    choice.path = Path::hierarchical;
  } else if (s.largest_node > 1) {
    choice.path = Path::hierarchical_lanes;
  }
  return choice;
}

Choice choose_between_nodes(const Situation& s, const Config& config) {
  switch (s.kind) {
    case CallKind::allreduce:
      return choose_allreduce(s, config);
    case CallKind::barrier:
      return {Path::agreement, "nothing but the agreement"};
    case CallKind::broadcast:
    case CallKind::reduce:
      return s.bytes < chain_bytes ? Choice{Path::binomial, "small: the fewest steps"}
                                   : Choice{Path::chain, "large: all links work at once"};
    case CallKind::allgather:
      if (s.largest_node == 1 && Agreement::is_direct(s.nodes) && s.bytes <= largest_along) {
        return {Path::agreement, "small enough to travel along with the agreement"};
      }
      [[fallthrough]];
    case CallKind::allgatherv:
      return s.bytes <= pairwise_bytes ? Choice{Path::pairwise, "small: no step waits for another"}
                                       : Choice{Path::ring, "large: one neighbor at a time"};
    case CallKind::reduce_scatter:
      return {Path::ring, "every block is summed on its way"};
    case CallKind::alltoall:
    case CallKind::gather:
    case CallKind::scatter:
      return {Path::pairwise, "every block goes straight to its rank"};
  }
  throw Error(ErrorKind::internal, "unknown kind of call");
}

[[noreturn]] void refuse(const Situation& s, const std::string& what) {
  throw Error(ErrorKind::value, "algorithm '" + std::string(name_of(s.algorithm)) + "' " + what);
}

void check_serves(const Situation& s, std::initializer_list<CallKind> kinds) {
  if (std::find(kinds.begin(), kinds.end(), s.kind) == kinds.end()) {
    std::string served;
    for (const CallKind kind : kinds) {
      served += (served.empty() ? "" : ", ") + std::string(name_of(kind));
    }
    refuse(s, "does not serve " + std::string(name_of(s.kind)) + ", only " + served);
  }
}

}  // namespace

Choice select(const Situation& s, const Config& config) {
  constexpr const char* asked = "asked for";
  constexpr Choice alone = {Path::alone, "one rank"};
  switch (s.algorithm) {
    case Algorithm::automatic:
      if (s.ranks == 1) {
        return alone;
      }
      return s.nodes > 1 ? choose_between_nodes(s, config) : choose_inside_node(s, config);
    case Algorithm::shared:
      if (s.nodes > 1) {
        refuse(s, "works inside one node, but the ranks are on " + std::to_string(s.nodes) + " nodes");
      }
      return s.ranks == 1 ? alone : choose_inside_node(s, config);
    case Algorithm::mpi:
      if (!s.has_mpi_communicator) {
        refuse(s,
               "hands calls over to the MPI library, which has no communicator of these ranks: it has one of ranks "
               "that its launcher has started, with MPI_THREAD_MULTIPLE, and none of ranks that recover() has left");
      }
      if (s.wire) {
        refuse(s, "has no wire");
      }
      return {Path::mpi, asked};
    case Algorithm::ring:
      check_serves(s, {CallKind::allreduce, CallKind::reduce_scatter, CallKind::allgather, CallKind::allgatherv});
      return s.ranks == 1 ? alone : Choice{Path::ring, asked};
    case Algorithm::recursive_doubling:
      check_serves(s, {CallKind::allreduce});
      return s.ranks == 1 ? alone : Choice{Path::recursive_doubling, asked};
    case Algorithm::hierarchical:
      check_serves(s, {CallKind::allreduce});
      return s.ranks == 1 ? alone : Choice{Path::hierarchical, asked, choose_between(s, config).between};
    case Algorithm::hierarchical_lanes:
      check_serves(s, {CallKind::allreduce});
      return s.ranks == 1 ? alone : Choice{Path::hierarchical_lanes, asked, choose_between(s, config).between};
    case Algorithm::nccl:
      refuse(s, "serves tensors on CUDA devices, and this one is in memory of the host");
  }
  throw Error(ErrorKind::internal, "unknown algorithm");
}

std::vector<SizeChoice> select_for_all_sizes(Situation situation, const Config& config) {
  constexpr std::size_t largest = std::size_t{1} << 40;
  const auto choice_at = [&](std::size_t bytes) {
    situation.bytes = bytes;
    return select(situation, config);
  };
  const auto alike = [](const Choice& a, const Choice& b) { return a.path == b.path && a.between == b.between; };
  std::vector<SizeChoice> choices = {{0, choice_at(0)}};
  for (std::size_t bytes = 1; bytes <= largest; bytes *= 2) {
    while (!alike(choice_at(bytes), choices.back().choice)) {  // bisect for the size where the choice changes
      std::size_t below = std::max(choices.back().from, bytes / 2);
      std::size_t above = bytes;
      while (above - below > 1) {
        const std::size_t middle = below + (above - below) / 2;
        (alike(choice_at(middle), choices.back().choice) ? below : above) = middle;
      }
      choices.push_back({above, choice_at(above)});
    }
  }
  return choices;
}

}  // namespace gradientflow::collective

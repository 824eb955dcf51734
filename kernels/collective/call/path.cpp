#include "path.hpp"

#include <array>

namespace gradientflow::collective {
namespace {

constexpr std::array<std::string_view, 14> paths = {
    "alone", "announcement", "node_memory",        "direct",   "staged", "agreement", "recursive_doubling",
    "ring",  "hierarchical", "hierarchical_lanes", "binomial", "chain",  "pairwise",  "mpi"};

}  // namespace

std::string_view name_of(Path path) { return paths.at(static_cast<std::size_t>(path)); }

std::string_view name_of(Between between) {
  switch (between) {
    case Between::ring:
      return "a ring";
    case Between::recursive_doubling:
      return "recursive doubling";
    case Between::pairwise:
      return "pairwise exchange";
  }
  return "?";
}

bool is_inside_node(Path path) {
  return path == Path::alone || path == Path::announcement || path == Path::node_memory || path == Path::direct ||
         path == Path::staged;
}

}  // namespace gradientflow::collective

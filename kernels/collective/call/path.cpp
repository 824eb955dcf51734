#include "path.hpp"

namespace gradientflow::collective {

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

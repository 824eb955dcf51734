// Queries that need no communicator: the paths of an allreduce, the wires, the memory of the machine.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "../kernels/base/config.hpp"
#include "../kernels/base/wire.hpp"
#include "../kernels/collective/select/selector.hpp"
#include "../kernels/transport/node/memory_limits.hpp"
#include "bindings.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;
using PathsBySize = py::typing::List<py::typing::Tuple<std::size_t, py::str, py::str>>;

// Returns the paths of an allreduce of ordinary arrays between nodes with these numbers of ranks, according to the
// environment's settings.
PathsBySize paths_by_size(const std::vector<int>& node_sizes) {
  const auto [smallest, largest] = std::minmax_element(node_sizes.begin(), node_sizes.end());
  PathsBySize found;
  for (const auto& each :
       collective::select_for_all_sizes({.kind = transport::CallKind::allreduce,
                                         .algorithm = transport::Algorithm::automatic,
                                         .bytes = 0,
                                         .wire = false,
                                         .ranks = std::accumulate(node_sizes.begin(), node_sizes.end(), 0),
                                         .nodes = static_cast<int>(node_sizes.size()),
                                         .smallest_node = *smallest,
                                         .largest_node = *largest,
                                         .in_node_memory = false,
                                         .direct_read_allowed = false},
                                        read_config())) {
    found.append(py::make_tuple(each.from, collective::name_of(each.choice.path), each.choice.reason));
  }
  return found;
}

// The fields of gradientflow.wires.Wire, after the name.
py::list known_wires() {
  py::list found;
  for (const WireTraits& wire : wires) {
    found.append(py::make_tuple(wire.name, wire.element, wire.header,
                                wire.dtype ? py::object(py::str(std::string(name_of(*wire.dtype)))) : py::none()));
  }
  return found;
}

std::pair<std::size_t, std::size_t> memory(const std::string& root) {
  const transport::MemoryLimits limits(root);
  return {limits.total(), limits.available()};
}

}  // namespace

void bind_machine(py::module_& module) {
  module.def("paths_by_size", &paths_by_size, py::arg("node_sizes"), "(Least bytes, path, why) of an allreduce.");
  module.def("wires", &known_wires);
  module.def("check_single", [](const std::string& wire, const std::string& sender) {
    static_cast<void>(dtype_of(wire_from_name(wire), sender));
  });
  module.def("memory", &memory, py::arg("root") = "",
             "Bytes of memory that this process can have in all, and now; `root` stands for /, for tests.");
}

}  // namespace gradientflow::bindings

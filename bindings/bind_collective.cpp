// gradientflow._core.collective: the pure functions behind the collectives (index arithmetic, the choice of a path, the
// grouping of ranks), for the tests.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "../kernels/base/config.hpp"
#include "../kernels/collective/partition.hpp"
#include "../kernels/collective/selector.hpp"
#include "../kernels/transport/topology.hpp"
#include "bindings.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;
using Bounds = std::pair<std::size_t, std::size_t>;

Bounds bounds(const collective::Range& range) { return {range.begin, range.end}; }

Bounds block(std::size_t count, std::size_t parts, std::size_t index) {
  return bounds(collective::block(count, parts, index));
}

Bounds slice(std::size_t count, std::size_t parts, std::size_t index, std::size_t grain) {
  return bounds(collective::slice(count, parts, index, grain));
}

Bounds piece(const Bounds& range, std::size_t length, std::size_t index) {
  return bounds(collective::piece({range.first, range.second}, length, index));
}

transport::CallKind kind_from_name(const std::string& name) {
  using transport::CallKind;
  for (const CallKind kind : {CallKind::barrier, CallKind::allreduce, CallKind::broadcast, CallKind::reduce,
                              CallKind::allgather, CallKind::reduce_scatter, CallKind::allocate}) {
    if (transport::name_of(kind) == name) {
      return kind;
    }
  }
  throw Error(ErrorKind::value, "unknown kind of call '" + name + "'");
}

// With the default settings and `overrides`, whatever the environment says.
std::string select(const std::string& kind, const std::string& algorithm, std::size_t bytes, int ranks, int nodes,
                   bool in_node_memory, bool direct_read_allowed, const std::map<std::string, std::string>& overrides) {
  Config config;
  for (const auto& [name, text] : overrides) {
    set_field(config, name, text);
  }
  const collective::Path path = collective::select({.kind = kind_from_name(kind),
                                                    .algorithm = transport::algorithm_from_name(algorithm),
                                                    .bytes = bytes,
                                                    .ranks = ranks,
                                                    .nodes = nodes,
                                                    .in_node_memory = in_node_memory,
                                                    .direct_read_allowed = direct_read_allowed},
                                                   config);
  return std::string(collective::name_of(path));
}

std::vector<std::vector<int>> group_ranks(const std::vector<std::size_t>& host_keys, int node_size) {
  return transport::group_ranks(host_keys, 0, node_size).members;
}

}  // namespace

void bind_collective(py::module_& module) {
  py::module_ functions = module.def_submodule("collective", "The pure functions behind the collectives, for tests.");
  functions.def("block", &block, py::arg("count"), py::arg("parts"), py::arg("index"));
  functions.def("slice", &slice, py::arg("count"), py::arg("parts"), py::arg("index"), py::arg("grain"));
  functions.def("piece", &piece, py::arg("range"), py::arg("length"), py::arg("index"));
  functions.def("pieces", &collective::pieces, py::arg("count"), py::arg("length"));
  functions.def("select", &select, py::arg("kind"), py::arg("algorithm"), py::arg("bytes"), py::arg("ranks"),
                py::arg("nodes"), py::arg("in_node_memory"), py::arg("direct_read_allowed"),
                py::arg("overrides") = std::map<std::string, std::string>());
  functions.def("group_ranks", &group_ranks, py::arg("host_keys"), py::arg("node_size"),
                "The ranks of each node, for one host key a rank.");
}

}  // namespace gradientflow::bindings

// gradientflow._core.selector: the path of a call, and the ranges of a pool, for hypothetical ranks.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../kernels/base/config.hpp"
#include "../kernels/collective/between/agreement.hpp"
#include "../kernels/collective/select/selector.hpp"
#include "../kernels/engine/exchange/fusion.hpp"
#include "../kernels/engine/exchange/top_k_plan.hpp"
#include "../kernels/engine/memory/layout.hpp"
#include "bindings.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;

// Selects the paths that the ranks of a job with these settings would select.
class Selector {
 public:
  Selector(const std::vector<int>& nodes, const std::string& transport, const std::map<std::string, std::string>& words)
      : config_(read_config(words)) {
    collective::Situation& s = situation_;
    s.nodes = static_cast<int>(nodes.size());
    s.ranks = 0;
    s.smallest_node = s.largest_node = nodes.at(0);
    for (const int ranks : nodes) {
      s.ranks += ranks;
      s.smallest_node = std::min(s.smallest_node, ranks);
      s.largest_node = std::max(s.largest_node, ranks);
    }
    s.direct_read_allowed = config_.direct_read;
    s.transport = transport::transport_named(transport);
    s.has_mpi_communicator = s.transport.is_mpi;
  }

  // Returns (path, algorithm between nodes, reason).
  [[nodiscard]] py::typing::Tuple<py::str, py::str, py::str> path_of(const std::string& kind, std::size_t bytes,
                                                                     bool wire, const std::string& algorithm,
                                                                     bool in_node_memory) const {
    collective::Situation s = situation_;
    s.kind = transport::kind_from_name(kind);
    s.bytes = bytes;
    s.wire = wire;
    s.algorithm = transport::algorithm_from_name(algorithm);
    s.in_node_memory = in_node_memory;
    const collective::Choice choice = collective::select(s, config_);
    return py::make_tuple(collective::name_of(choice.path), collective::name_of(choice.between), choice.reason);
  }

  [[nodiscard]] std::size_t segment_bytes() const { return config_.segment_bytes; }
  [[nodiscard]] std::size_t stretch_bytes() const { return config_.stretch_bytes; }

 private:
  Config config_;
  collective::Situation situation_{};
};

// Returns the messages of a top-k pool: (first layer, one past the last, True if it is dense, its bytes) of each.
std::vector<std::tuple<std::size_t, std::size_t, bool, std::size_t>> top_k_messages(
    const std::vector<std::size_t>& counts, const std::vector<std::size_t>& layers, const std::vector<double>& ratios,
    std::size_t ranks, const std::string& dtype, const std::string& values, std::size_t merge_bytes) {
  constexpr std::size_t trailer_bytes = 64;
  const DType gradients = dtype_from_name(dtype);
  const std::vector<std::size_t> offsets = engine::in_elements(engine::lay_out(counts, gradients), gradients);
  const engine::TopKPlan plan = engine::plan_top_k(engine::lay_out_layers(counts, offsets, layers), ratios,
                                                   {.ranks = ranks,
                                                    .gradients = gradients,
                                                    .values = dtype_from_name(values),
                                                    .merge_bytes = merge_bytes,
                                                    .trailer_bytes = trailer_bytes});
  std::vector<std::tuple<std::size_t, std::size_t, bool, std::size_t>> messages;
  for (const engine::TopKMessage& message : plan.messages) {
    messages.emplace_back(message.begin, message.end, message.dense, message.bytes);
  }
  return messages;
}

}  // namespace

void bind_selector(py::module_& module) {
  py::module_ selector = module.def_submodule("selector", "The choices of the core, for ranks that need not be there.");
  py::class_<Selector>(selector, "Selector")
      .def(py::init<const std::vector<int>&, const std::string&, const std::map<std::string, std::string>&>(),
           py::arg("nodes"), py::arg("transport"), py::arg("settings"))
      .def("path_of", &Selector::path_of, py::arg("kind"), py::arg("bytes"), py::arg("wire"), py::arg("algorithm"),
           py::arg("in_node_memory"))
      .def_property_readonly("segment_bytes", &Selector::segment_bytes)
      .def_property_readonly("stretch_bytes", &Selector::stretch_bytes);
  selector.attr("statement_bytes") = sizeof(collective::Statement);
  selector.attr("largest_along") = collective::largest_along;
  selector.def(
      "automatic_threshold",
      [](std::size_t bytes, int nodes) { return engine::automatic_threshold(bytes, nodes, false); }, py::arg("bytes"),
      py::arg("nodes"));
  selector.attr("chunks_bytes") = engine::chunks_bytes;
  selector.attr("entries_bytes") = engine::entries_bytes;
  selector.def("is_direct", &collective::Agreement::is_direct, py::arg("nodes"));
  selector.def("top_k_messages", &top_k_messages, py::arg("counts"), py::arg("layers"), py::arg("ratios"),
               py::arg("ranks"), py::arg("dtype"), py::arg("values"), py::arg("merge_bytes"));
  selector.def(
      "fuse",
      [](const std::vector<std::size_t>& bytes, std::size_t threshold) {
        std::vector<std::pair<std::size_t, std::size_t>> ranges;
        for (const engine::TensorRange& range : engine::fuse(bytes, threshold)) {
          ranges.emplace_back(range.begin, range.end);
        }
        return ranges;
      },
      py::arg("bytes"), py::arg("threshold"), "The tensors of each range: first, one past the last.");
}

}  // namespace gradientflow::bindings

// gradientflow._core.TopKPool.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../kernels/engine/exchange/top_k_plan.hpp"
#include "../kernels/engine/exchange/top_k_pool.hpp"
#include "argument.hpp"
#include "bindings.hpp"
#include "call_site.hpp"
#include "gil.hpp"
#include "residual_pool.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;
using engine::Communicator;
using engine::TopKPool;
using How = compute::Select::How;
using SelectionName = Argument<"selection", "'exact', 'sampled' or 'random'", std::string_view>;

How selection_of(std::string_view name) {
  constexpr std::array<std::string_view, 3> names = {"exact", "sampled", "random"};
  const auto* const found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    throw Error(ErrorKind::value, "selection is 'exact', 'sampled' or 'random', not '" + std::string(name) + "'");
  }
  return static_cast<How>(found - names.begin());
}

std::shared_ptr<TopKPool> make_top_k_pool(Communicator& communicator, const std::vector<std::size_t>& counts,
                                          const std::string& dtype, const std::vector<double>& ratios,
                                          const std::vector<std::size_t>& layers, const SelectionName& selection,
                                          std::size_t threshold_reuse, std::optional<float> momentum, bool masking,
                                          std::optional<double> clip, const WireName& wire,
                                          const AlgorithmName& algorithm, std::optional<std::size_t> merge_bytes,
                                          bool overlap, std::uint64_t seed, std::size_t extra, bool skip_nonfinite,
                                          std::optional<int> device) {
  const DType type = dtype_from_name(dtype);
  const TopKPool::Options options{.ratios = ratios,
                                  .layers = layers,
                                  .selection = selection_of(selection.value),
                                  .threshold_reuse = threshold_reuse,
                                  .momentum = momentum,
                                  .masking = masking,
                                  .clip = clip,
                                  .wire = given_wire(wire),
                                  .algorithm = transport::algorithm_from_name(algorithm.value),
                                  .merge_bytes = merge_bytes,
                                  .overlap = overlap,
                                  .seed = seed,
                                  .extra = extra,
                                  .skip_nonfinite = skip_nonfinite,
                                  .device = device};
  const AtCallSite site;
  const WithoutGil release;
  return std::make_shared<TopKPool>(communicator, counts, type, options);
}

// Returns the fields of gradientflow.pools.top_k.LayerSelection.
py::list layer_selections(const TopKPool& pool) {
  constexpr std::array<const char*, 3> formats = {"words", "offsets", "bitmap"};
  py::list found;
  for (const auto& layer : pool.layer_selections()) {
    found.append(py::make_tuple(layer.tensors.begin, layer.tensors.end - layer.tensors.begin, layer.elements, layer.k,
                                layer.ratio, layer.dense, formats.at(static_cast<std::size_t>(layer.indices)),
                                layer.sent, layer.united, layer.threshold, layer.select_seconds, layer.message,
                                layer.ready ? py::object(py::float_(seconds(*layer.ready))) : py::none()));
  }
  return found;
}

// Returns one array for all tensors of the pool; None without momentum.
std::optional<Floats> velocities(const TopKPool& pool) {
  return pool.has_velocities() ? std::optional(kept_of(pool, [&](std::span<float> to) { pool.copy_velocities(to); }))
                               : std::nullopt;
}

void restore_top_k_pool(TopKPool& pool, const Floats& residual, const Floats& velocity, const Floats& threshold,
                        std::uint64_t iteration) {
  const TopKPool::TopKCheckpoint state{span_of(residual), span_of(velocity), span_of(threshold), iteration};
  const AtCallSite site;
  const WithoutGil release;
  pool.restore(state);
}

}  // namespace

void bind_top_k_pool(py::module_& module) {
  py::class_<TopKPool, std::shared_ptr<TopKPool>> pool_class(module, "TopKPool");
  define_residual_pool(pool_class);
  pool_class
      .def(py::init(&make_top_k_pool), py::arg("communicator"), py::arg("counts"), py::arg("dtype"), py::arg("ratios"),
           py::arg("layers"), py::arg("selection"), py::arg("threshold_reuse"), py::arg("momentum"), py::arg("masking"),
           py::arg("clip"), py::arg("wire"), py::arg("algorithm"), py::arg("merge_bytes"), py::arg("overlap"),
           py::arg("seed"), py::arg("extra"), py::arg("skip_nonfinite"), py::arg("device"))
      .def_property_readonly("merge_bytes", &TopKPool::merge_bytes)
      .def_property("ratios", &TopKPool::ratios,
                    [](TopKPool& pool, const std::vector<double>& ratios) { pool.set_ratios(ratios); })
      .def_property_readonly("layer_selections", &layer_selections)
      .def_property_readonly("velocities", &velocities)
      .def_property_readonly("thresholds", &TopKPool::thresholds)
      .def("update", [](const TopKPool& pool) { return bound(pool.update(), pool); })
      .def(
          "ready_elsewhere",
          [](TopKPool& pool, std::size_t tensor, std::uintptr_t address) {
            pool.ready_elsewhere(
                tensor, reinterpret_cast<std::byte*>(address));  // NOLINT(performance-no-int-to-ptr): from Python
          },
          py::arg("tensor"), py::arg("address"), py::call_guard<WithoutGil>())
      .def("restore", &restore_top_k_pool, py::arg("residual"), py::arg("velocity"), py::arg("threshold"),
           py::arg("iteration"))
      .def(
          "wait",
          [](TopKPool& pool, const Timeout& timeout, Number stream) { pool.wait(timeout.value, stream_of(stream)); },
          py::arg("timeout"), py::arg("stream"), py::call_guard<AtCallSite, WithoutGil>());
  module.def("k_of", &engine::k_of, py::arg("elements"), py::arg("ratio"),
             "Number of entries of a layer sent with a compression ratio.");
}

}  // namespace gradientflow::bindings

// gradientflow._core.SparsePool, and the choice of chunks.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "../kernels/engine/exchange/chunk_selection.hpp"
#include "../kernels/engine/exchange/sparse_pool.hpp"
#include "argument.hpp"
#include "bindings.hpp"
#include "call_site.hpp"
#include "gil.hpp"
#include "residual_pool.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;
using engine::Communicator;
using engine::SparsePool;

template <class T>
py::array_t<T> array_of(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

std::shared_ptr<SparsePool> make_sparse_pool(Communicator& communicator, const std::vector<std::size_t>& counts,
                                             const std::string& dtype, std::size_t chunk_size, float momentum,
                                             std::size_t extra, bool skip_nonfinite, std::uint64_t first_iteration,
                                             std::optional<std::size_t> fusion_threshold, const WireName& wire,
                                             const AlgorithmName& algorithm, std::optional<int> device) {
  const DType type = dtype_from_name(dtype);
  const SparsePool::Options options{.pool = {.fusion_threshold = fusion_threshold,
                                             .wire = given_wire(wire),
                                             .algorithm = transport::algorithm_from_name(algorithm.value),
                                             .device = device},
                                    .chunk_size = chunk_size,
                                    .momentum = momentum,
                                    .extra = extra,
                                    .skip_nonfinite = skip_nonfinite,
                                    .first_iteration = first_iteration};
  const AtCallSite site;
  const WithoutGil release;
  return std::make_shared<SparsePool>(communicator, counts, type, options);
}

py::array_t<std::size_t> spans(const SparsePool& pool) {
  const auto found = pool.spans();
  py::array_t<std::size_t> pairs({static_cast<py::ssize_t>(found.size()), py::ssize_t{2}});
  auto values = pairs.mutable_unchecked<2>();
  for (std::size_t i = 0; i < found.size(); ++i) {
    values(static_cast<py::ssize_t>(i), 0) = found[i].begin;
    values(static_cast<py::ssize_t>(i), 1) = found[i].end;
  }
  return pairs;
}

void restore_sparse_pool(SparsePool& pool, const Floats& residual, const std::vector<std::uint8_t>& important,
                         std::uint64_t iteration) {
  const std::span<const float> numbers = span_of(residual);
  const AtCallSite site;
  const WithoutGil release;
  pool.restore(numbers, important, iteration);
}

std::vector<std::uint8_t> choose_important(const std::vector<double>& norms, std::size_t count) {
  return engine::choose_important(norms, count);
}

}  // namespace

void bind_sparse_pool(py::module_& module) {
  py::class_<SparsePool, std::shared_ptr<SparsePool>> pool_class(module, "SparsePool");
  define_residual_pool(pool_class);
  pool_class
      .def(py::init(&make_sparse_pool), py::arg("communicator"), py::arg("counts"), py::arg("dtype"),
           py::arg("chunk_size"), py::arg("momentum"), py::arg("extra"), py::arg("skip_nonfinite"),
           py::arg("first_iteration"), py::arg("fusion_threshold"), py::arg("wire"), py::arg("algorithm"),
           py::arg("device"))
      .def_property_readonly("fusion_threshold", &SparsePool::fusion_threshold)
      .def_property_readonly("chunk_size", &SparsePool::chunk_size)
      .def_property_readonly("chunks", &SparsePool::chunks)
      .def_property_readonly("important", [](const SparsePool& pool) { return array_of(pool.important()); })
      .def_property_readonly("sent", [](const SparsePool& pool) { return array_of(pool.sent()); })
      .def_property_readonly("spans", &spans)
      .def_property_readonly("norms", [](const SparsePool& pool) { return array_of(pool.norms()); })
      .def(
          "update", [](const SparsePool& pool, bool everywhere) { return bound(pool.update(everywhere), pool); },
          py::arg("everywhere"))
      .def_property("momentum", &SparsePool::momentum, &SparsePool::set_momentum)
      .def("restore", &restore_sparse_pool, py::arg("residual"), py::arg("important"), py::arg("iteration"))
      .def(
          "wait",
          [](SparsePool& pool, const Timeout& timeout, double density, Number stream) {
            pool.wait(timeout.value, density, stream_of(stream));
          },
          py::arg("timeout"), py::arg("density"), py::arg("stream"), py::call_guard<AtCallSite, WithoutGil>());
  module.def("important_count", &engine::important_count, py::arg("density"), py::arg("chunks"),
             "Number of chunks sent at a density.");
  module.def("choose_important", &choose_important, py::arg("norms"), py::arg("count"),
             "1 for each of the chunks of largest norm, else 0; of equal norms, the lower index comes first.");
}

}  // namespace gradientflow::bindings

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
#include "gil.hpp"
#include "pool_memory.hpp"
#include "reports.hpp"
#include "update.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;
using engine::Communicator;
using engine::SparsePool;
using Floats = py::array_t<float, py::array::c_style>;

template <class T>
py::array_t<T> array_of(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

std::shared_ptr<SparsePool> make(Communicator& communicator, const std::vector<std::size_t>& counts,
                                 const std::string& dtype, std::size_t chunk_size, float momentum, std::size_t extra,
                                 bool skip_nonfinite, std::uint64_t first_iteration,
                                 std::optional<std::size_t> fusion_threshold, const Wire& wire,
                                 const AlgorithmName& algorithm, std::optional<int> device) {
  const DType type = dtype_from_name(dtype);
  const SparsePool::Options options{.pool = {.fusion_threshold = fusion_threshold,
                                             .wire = dtype_of(wire),
                                             .algorithm = transport::algorithm_from_name(algorithm.value),
                                             .device = device},
                                    .chunk_size = chunk_size,
                                    .momentum = momentum,
                                    .extra = extra,
                                    .skip_nonfinite = skip_nonfinite,
                                    .first_iteration = first_iteration};
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

Floats residuals(const SparsePool& pool) {
  Floats numbers(static_cast<py::ssize_t>(pool.elements()));
  pool.copy_residuals({numbers.mutable_data(), pool.elements()});
  return numbers;
}

void set_residuals(SparsePool& pool, const Floats& residual, Number stream) {
  pool.set_residuals({residual.data(), static_cast<std::size_t>(residual.size())}, stream_of(stream));
}

void restore(SparsePool& pool, const Floats& residual, const std::vector<std::uint8_t>& important,
             std::uint64_t iteration) {
  const std::span<const float> numbers{residual.data(), static_cast<std::size_t>(residual.size())};
  const WithoutGil release;
  pool.restore(numbers, important, iteration);
}

// (rank or -1, first tensor, last tensor)
py::object nonfinite(const SparsePool& pool) {
  const auto place = pool.nonfinite();
  return place ? py::make_tuple(place->rank, place->first, place->last) : py::object(py::none());
}

std::vector<std::uint8_t> choose_important(const std::vector<double>& norms, std::size_t count) {
  return engine::choose_important(norms, count);
}

}  // namespace

void bind_sparse_pool(py::module_& module) {
  const py::call_guard<WithoutGil> without_gil;
  py::class_<SparsePool, std::shared_ptr<SparsePool>>(module, "SparsePool")
      .def(py::init(&make), py::arg("communicator"), py::arg("counts"), py::arg("dtype"), py::arg("chunk_size"),
           py::arg("momentum"), py::arg("extra"), py::arg("skip_nonfinite"), py::arg("first_iteration"),
           py::arg("fusion_threshold"), py::arg("wire"), py::arg("algorithm"), py::arg("device"))
      .def_property_readonly("bytes", &SparsePool::bytes)
      .def_property_readonly("fusion_threshold", &SparsePool::fusion_threshold)
      .def_property_readonly("chunk_size", &SparsePool::chunk_size)
      .def_property_readonly("chunks", &SparsePool::chunks)
      .def_property_readonly("extra", &extra_of<SparsePool>)
      .def_property_readonly("important", [](const SparsePool& pool) { return array_of(pool.important()); })
      .def_property_readonly("sent", [](const SparsePool& pool) { return array_of(pool.sent()); })
      .def_property_readonly("spans", &spans)
      .def_property_readonly("norms", [](const SparsePool& pool) { return array_of(pool.norms()); })
      .def_property_readonly("overflowed", &SparsePool::overflowed)
      .def_property_readonly("nonfinite", &nonfinite)
      .def_property_readonly("bookkeeping_seconds", &SparsePool::bookkeeping_seconds)
      .def_property_readonly("reports", [](const SparsePool& pool) { return reports_of(pool.reports()); })
      .def_property_readonly("ready_count", &SparsePool::ready_count)
      .def_property_readonly("iteration", &SparsePool::iteration)
      .def_property_readonly("closed", &SparsePool::closed)
      .def_property_readonly("segment", [](const SparsePool& pool) { return segment_of(pool.memory()); })
      .def(
          "update",
          [](const SparsePool& pool, bool everywhere) {
            return BoundUpdate{pool.update(everywhere), segment_of(pool.memory())};
          },
          py::arg("everywhere"))
      .def("is_ready", &SparsePool::is_ready, py::arg("tensor"))
      .def_property("momentum", &SparsePool::momentum, &SparsePool::set_momentum)
      .def_property("skip_nonfinite", &SparsePool::skip_nonfinite, &SparsePool::set_skip_nonfinite)
      .def_property("loss_scale", &SparsePool::loss_scale, &SparsePool::set_loss_scale)
      .def_property_readonly("residuals", &residuals)
      .def("set_residuals", &set_residuals, py::arg("residual"), py::arg("stream"))
      .def("restore", &restore, py::arg("residual"), py::arg("important"), py::arg("iteration"))
      .def("take_over_means", &SparsePool::take_over_means, py::arg("other"))
      .def("refuse_state", &SparsePool::refuse_state, py::arg("why"), without_gil)
      .def("offset", &SparsePool::offset, py::arg("tensor"))
      .def(
          "zero", [](SparsePool& pool, Number stream) { pool.zero(stream_of(stream)); }, py::arg("stream"), without_gil)
      .def(
          "ready",
          [](SparsePool& pool, const TensorIndex& index, Number stream) {
            pool.ready(tensor_at(pool, index), stream_of(stream));
          },
          py::arg("index"), py::arg("stream"), without_gil)
      .def(
          "ready_all", [](SparsePool& pool, Number stream) { pool.ready_all(stream_of(stream)); }, py::arg("stream"),
          without_gil)
      .def(
          "wait",
          [](SparsePool& pool, const Timeout& timeout, double density, Number stream) {
            pool.wait(timeout.value, density, stream_of(stream));
          },
          py::arg("timeout"), py::arg("density"), py::arg("stream"), without_gil)
      .def(
          "abandon", [](SparsePool& pool, Number stream) { pool.abandon(stream_of(stream)); }, py::arg("stream"),
          without_gil)
      .def("close", &SparsePool::close, py::arg("drain"), without_gil);
  module.def("important_count", &engine::important_count, py::arg("density"), py::arg("chunks"),
             "How many chunks are sent at a density.");
  module.def("choose_important", &choose_important, py::arg("norms"), py::arg("count"),
             "By chunk: 1 for those of largest norm, the lower index where two are equal.");
}

}  // namespace gradientflow::bindings

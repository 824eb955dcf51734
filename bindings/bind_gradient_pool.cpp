// gradientflow._core.GradientPool and fuse.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../kernels/engine/exchange/gradient_pool.hpp"
#include "argument.hpp"
#include "bindings.hpp"
#include "call_site.hpp"
#include "fast_path.hpp"
#include "gil.hpp"
#include "pool.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;
using engine::Communicator;
using engine::GradientPool;

// Returns (first tensor, one past the last, offset, bytes) of each range.
std::vector<std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>> ranges(const GradientPool& pool) {
  std::vector<std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>> found;
  for (const auto& range : pool.ranges()) {
    found.emplace_back(range.begin, range.end, pool.offset(range.begin), pool.bytes_of(range));
  }
  return found;
}

std::vector<std::pair<std::size_t, std::size_t>> fuse(const std::vector<std::size_t>& bytes, std::size_t threshold) {
  std::vector<std::pair<std::size_t, std::size_t>> found;
  for (const auto& range : engine::fuse(bytes, threshold)) {
    found.emplace_back(range.begin, range.end);
  }
  return found;
}

std::shared_ptr<GradientPool> make_gradient_pool(Communicator& communicator, const std::vector<std::size_t>& counts,
                                                 const std::string& dtype, std::optional<std::size_t> fusion_threshold,
                                                 const WireName& wire, const AlgorithmName& algorithm,
                                                 std::optional<int> device, std::size_t extra) {
  const DType type = dtype_from_name(dtype);
  const GradientPool::Options options{.fusion_threshold = fusion_threshold,
                                      .wire = given_wire(wire),
                                      .algorithm = transport::algorithm_from_name(algorithm.value),
                                      .device = device,
                                      .extra = extra};
  const AtCallSite site;
  const WithoutGil release;
  return std::make_shared<GradientPool>(communicator, counts, type, options);
}

// Serve `ready` and `wait` fast, for calls without a stream.
py::object ready(GradientPool& pool, Given given, py::handle /*self*/) {
  if (!is_none(given[1])) {
    return {};
  }
  if (is_none(given[0])) {
    const AtCallSite site;
    const WithoutGil release;
    pool.ready_all();
  } else {
    const std::size_t tensor = tensor_at(pool, converted(given[0], TensorIndex{}));
    const AtCallSite site;
    const WithoutGil release;
    pool.ready(tensor);
  }
  return py::none();
}

py::object wait(GradientPool& pool, Given given, py::handle /*self*/) {
  if (!is_none(given[1])) {
    return {};
  }
  const std::optional<double> timeout = converted(given[0], Timeout{}).value;
  const AtCallSite site;
  const WithoutGil release;
  pool.wait(timeout);
  return py::none();
}

}  // namespace

void bind_gradient_pool(py::module_& module) {
  py::class_<GradientPool, std::shared_ptr<GradientPool>> cls(module, "GradientPool");
  define_pool(cls);
  cls.def(py::init(&make_gradient_pool), py::arg("communicator"), py::arg("counts"), py::arg("dtype"),
          py::arg("fusion_threshold"), py::arg("wire"), py::arg("algorithm"), py::arg("device"), py::arg("extra"))
      .def_property_readonly("fusion_threshold", &GradientPool::fusion_threshold)
      .def_property_readonly("ranges", &ranges)
      .def(
          "regroup",
          [](GradientPool& pool, std::optional<std::size_t> fusion_threshold, const WireName& wire) {
            pool.regroup(fusion_threshold, given_wire(wire));
          },
          py::arg("fusion_threshold"), py::arg("wire"), py::call_guard<WithoutGil>())
      .def("update", [](const GradientPool& pool) { return bound(pool.update(), pool); })
      .def(
          "wait",
          [](GradientPool& pool, const Timeout& timeout, Number stream) {
            pool.wait(timeout.value, stream_of(stream));
          },
          py::arg("timeout"), py::arg("stream"), py::call_guard<AtCallSite, WithoutGil>())
      .def(
          "count_nonfinite",
          [](const GradientPool& pool, Number stream) { return pool.count_nonfinite(stream_of(stream)); },
          py::arg("stream"), py::call_guard<AtCallSite, WithoutGil>());
  def_fast_path<&ready>(cls, "ready", {"index", "stream"});
  def_fast_path<&wait>(cls, "wait", {"timeout", "stream"});
  module.def("fuse", &fuse, py::arg("bytes"), py::arg("threshold"), "(First tensor, one past the last) of each range.");
}

}  // namespace gradientflow::bindings

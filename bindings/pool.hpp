// Common parts of the bindings of all pools.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "../kernels/engine/exchange/pool.hpp"
#include "argument.hpp"
#include "bindings.hpp"
#include "call_site.hpp"
#include "gil.hpp"
#include "stream.hpp"
#include "update.hpp"

namespace gradientflow::bindings {

// Reports, one for each message: bytes, bytes sent, non-finite values, path, and the seconds at which it was ready,
// started and ended.
using Reports =
    pybind11::typing::List<pybind11::typing::Tuple<std::size_t, std::optional<std::size_t>, std::optional<std::size_t>,
                                                   pybind11::str, double, double, double>>;
using AnySegment = pybind11::typing::Union<transport::Segment, collective::DeviceSegment>;

using TensorIndex = Argument<"index", "the number of a tensor", std::ptrdiff_t>;

// Returns the tensor at an index; as in a list, negative indices count from the end. The pool refuses an index out of
// range.
inline std::size_t tensor_at(const engine::Pool& pool, const TensorIndex& index) {
  const auto number = static_cast<std::ptrdiff_t>(pool.places());
  return static_cast<std::size_t>(index.value < 0 && index.value >= -number ? index.value + number : index.value);
}

// Returns a gradientflow._core.Segment or gradientflow._core.device.Segment.
inline AnySegment segment_of(const engine::PoolMemory& memory) {
  return pybind11::reinterpret_steal<AnySegment>(
      (memory.device() ? pybind11::cast(memory.on_device()) : pybind11::cast(memory.on_host())).release());
}

// Binds the input of a step, over the pool's own memory.
inline BoundUpdate bound(engine::Update update, const engine::Pool& pool) {
  return {std::move(update), segment_of(pool.memory())};
}

inline double seconds(engine::Times::Clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

// Returns (bytes, bytes sent, non-finite values, path, ready, started, ended) of each message in the last iteration.
inline Reports reports_of(const engine::Pool& pool) {
  Reports found;
  for (const auto& report : pool.reports()) {
    found.append(pybind11::make_tuple(report.bytes, report.outcome.bytes_sent, report.outcome.nonfinite,
                                      report.outcome.path, seconds(report.ready), seconds(report.times.started),
                                      seconds(report.times.ended)));
  }
  return found;
}

// Returns the extra numbers that are averaged with the gradients: an array over the pool's own memory.
template <class Pool>
pybind11::array_t<double> extra_of(const pybind11::object& self) {
  auto& numbers = self.cast<Pool&>().extra();
  return pybind11::array_t<double>(static_cast<pybind11::ssize_t>(numbers.size()), numbers.data(), self);
}

template <class Pool>
void define_pool(pybind11::class_<Pool, std::shared_ptr<Pool>>& pool_class) {
  namespace py = pybind11;
  const py::call_guard<AtCallSite, WithoutGil> without_gil;
  const auto stream = py::arg("stream");
  pool_class.def_property_readonly("bytes", &Pool::bytes)
      .def_property_readonly("extra", &extra_of<Pool>)
      .def_property_readonly("reports", [](const Pool& pool) { return reports_of(pool); })
      .def_property_readonly("ready_count", &Pool::ready_count)
      .def_property_readonly("iteration", &Pool::iteration)
      .def_property_readonly("closed", &Pool::closed)
      .def_property_readonly("segment", [](const Pool& pool) { return segment_of(pool.memory()); })
      .def("is_ready", &Pool::is_ready, py::arg("tensor"))
      .def("offset", &Pool::offset, py::arg("tensor"))
      .def(
          "take_over_means", [](Pool& pool, const Pool& other) { pool.take_over_means(other); }, py::arg("other"))
      .def(
          "zero", [](Pool& pool, Number number) { pool.zero(stream_of(number)); }, stream, without_gil)
      .def(
          "ready",
          [](Pool& pool, const TensorIndex& index, Number number) {
            pool.ready(tensor_at(pool, index), stream_of(number));
          },
          py::arg("index"), stream, without_gil)
      .def(
          "ready_all", [](Pool& pool, Number number) { pool.ready_all(stream_of(number)); }, stream, without_gil)
      .def(
          "rollback", [](Pool& pool, Number number) { pool.rollback(stream_of(number)); }, stream, without_gil)
      .def("commit", &Pool::commit)
      .def_property_readonly("has_failed", &Pool::has_failed)
      .def("close", &Pool::close, py::arg("drain"), without_gil);
}

}  // namespace gradientflow::bindings

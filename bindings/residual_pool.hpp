// Common parts of the bindings of pools with residuals.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <tuple>

#include "pool.hpp"

namespace gradientflow::bindings {

using Floats = pybind11::array_t<float, pybind11::array::c_style>;

inline std::span<const float> span_of(const Floats& numbers) {
  return {numbers.data(), static_cast<std::size_t>(numbers.size())};
}

template <class Pool, class Copy>
Floats kept_of(const Pool& pool, Copy copy) {
  Floats numbers(static_cast<pybind11::ssize_t>(pool.elements()));
  copy({numbers.mutable_data(), pool.elements()});
  return numbers;
}

// Returns the place of a gradient that was not finite: (rank or -1, first tensor, last tensor).
template <class Pool>
std::optional<std::tuple<int, std::size_t, std::size_t>> nonfinite_of(const Pool& pool) {
  const auto place = pool.nonfinite();
  return place ? std::optional(std::tuple(place->rank, place->first, place->last)) : std::nullopt;
}

template <class Pool>
void define_residual_pool(pybind11::class_<Pool, std::shared_ptr<Pool>>& pool_class) {
  namespace py = pybind11;
  define_pool(pool_class);
  pool_class.def_property_readonly("overflowed", &Pool::dropped)
      .def_property_readonly("nonfinite", &nonfinite_of<Pool>)
      .def_property_readonly("bookkeeping_seconds", &Pool::selection_seconds)
      .def_property("skip_nonfinite", &Pool::skip_nonfinite, &Pool::set_skip_nonfinite)
      .def_property("loss_scale", &Pool::loss_scale, &Pool::set_loss_scale)
      .def_property_readonly(
          "residuals",
          [](const Pool& pool) { return kept_of(pool, [&](std::span<float> to) { pool.copy_residuals(to); }); })
      .def(
          "set_residuals",
          [](Pool& pool, const Floats& residual, Number stream) {
            pool.set_residuals(span_of(residual), stream_of(stream));
          },
          py::arg("residual"), py::arg("stream"))
      .def("refuse_state", &Pool::refuse_state, py::arg("why"), py::call_guard<WithoutGil>());
}

}  // namespace gradientflow::bindings

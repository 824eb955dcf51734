// gradientflow._core.GradientPool.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <vector>

#include "../kernels/engine/gradient_pool.hpp"
#include "bindings.hpp"

namespace gradientflow::bindings {

namespace py = pybind11;
using engine::Communicator;
using engine::GradientPool;

void bind_gradient_pool(py::module_& module) {
  py::class_<GradientPool, std::shared_ptr<GradientPool>>(module, "GradientPool")
      .def(py::init([](std::shared_ptr<Communicator> communicator, const std::vector<std::size_t>& counts,
                       const std::string& dtype) {
             const DType type = dtype_from_name(dtype);
             const py::gil_scoped_release release;
             return std::make_shared<GradientPool>(std::move(communicator), counts, type);
           }),
           py::arg("communicator"), py::arg("counts"), py::arg("dtype"))
      .def_property_readonly("bytes", &GradientPool::bytes)
      .def_property_readonly("ready_count", &GradientPool::ready_count)
      .def_property_readonly("segment", &GradientPool::segment)
      .def("offset", &GradientPool::offset, py::arg("tensor"))
      .def("ready", &GradientPool::ready, py::arg("tensor"))
      .def("wait", &GradientPool::wait, py::call_guard<py::gil_scoped_release>());
}

}  // namespace gradientflow::bindings

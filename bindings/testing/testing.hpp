// One function per binding file, each adding its part to the module gradientflow._core_testing.
#pragma once

#include <pybind11/pybind11.h>

namespace gradientflow::bindings {

void bind_collective(pybind11::module_& module);
void bind_compute(pybind11::module_& module);
void bind_cuda(pybind11::module_& module);
void bind_limit(pybind11::module_& module);
void bind_mpi(pybind11::module_& module);
void bind_policy(pybind11::module_& module);

}  // namespace gradientflow::bindings

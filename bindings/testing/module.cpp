// The Python module gradientflow._core_testing: what lies behind the package, for the tests and the benchmarks. The
// package itself does not use it.
#include "testing.hpp"

PYBIND11_MODULE(_core_testing, module) {
  using namespace gradientflow::bindings;  // NOLINT(google-build-using-namespace)
  module.doc() = "Kernels and pure functions of GradientFlow, one by one.";
  pybind11::module_::import("gradientflow._core");  // which translates errors into exceptions
  bind_compute(module);
  bind_cuda(module);
  bind_collective(module);
  bind_limit(module);
  bind_mpi(module);
  bind_policy(module);
}

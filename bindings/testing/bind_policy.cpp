// gradientflow._core_testing.policy: the searches for the next barrier of ElasticBSP, for the tests and the benchmarks.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <string>

#include "../../kernels/base/error.hpp"
#include "../../kernels/policy/barrier_search.hpp"
#include "../../kernels/policy/checked.hpp"
#include "testing.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;
using Times = py::array_t<double, py::array::c_style | py::array::forcecast>;

// (spread, time, pushes of each worker) for times of shape (workers, lookahead).
py::tuple find_barrier(const Times& times, const std::string& algorithm) {
  const auto search = policy::search_of(algorithm);
  if (!search) {
    throw Error(ErrorKind::value, "there is no search '" + algorithm + "'");
  }
  const std::span<const double> all(times.data(), static_cast<std::size_t>(times.size()));
  const std::size_t workers = times.ndim() == 2 ? static_cast<std::size_t>(times.shape(0)) : 0;
  policy::Barrier barrier{};
  {
    const py::gil_scoped_release released;
    barrier = policy::find_barrier(policy::Predictions(all, workers), *search);
  }
  return py::make_tuple(barrier.spread, barrier.time, barrier.pushes);
}

// Nanoseconds in which a policy decides about each push, of a worker at a time.
py::array_t<double> decide(policy::Checked& policy, const py::array_t<int, py::array::forcecast>& workers,
                           const Times& seconds) {
  using Clock = std::chrono::steady_clock;
  py::array_t<double> taken(workers.size());
  for (py::ssize_t push = 0; push < workers.size(); ++push) {
    const auto begin = Clock::now();
    static_cast<void>(policy.pushed(workers.at(push), seconds.at(push)));
    taken.mutable_at(push) = std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
  }
  return taken;
}

}  // namespace

void bind_policy(py::module_& module) {
  py::module_ policy = module.def_submodule("policy", "When workers synchronise.");
  policy.def("find_barrier", &find_barrier, py::arg("times"), py::arg("algorithm"));
  policy.def("decide", &decide, py::arg("policy"), py::arg("workers"), py::arg("seconds"));
}

}  // namespace gradientflow::bindings

// gradientflow._core.Endpoint, and those whose messages the MPI library moves.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "../kernels/base/config.hpp"
#include "../kernels/transport/mpi/mpi_library.hpp"
#include "bindings.hpp"
#include "bound_endpoint.hpp"
#include "gil.hpp"

namespace gradientflow::bindings {

namespace py = pybind11;

void bind_endpoint(py::module_& module) {
  py::class_<BoundEndpoint>(module, "Endpoint")
      .def_property_readonly("rank", [](const BoundEndpoint& self) { return self.get().rank(); })
      .def_property_readonly("size", [](const BoundEndpoint& self) { return self.get().size(); })
      .def_property_readonly("transport", [](const BoundEndpoint& self) { return name_of(self.get().kind()); })
      .def_property_readonly(
          "mpi", [](const BoundEndpoint& self) { return transport::mpi_handle(self.get()); },
          "The handle of its MPI communicator; None without MPI.")
      .def(
          "release_mpi", [](BoundEndpoint& self) { return transport::release_mpi_handle(self.take()); },
          "The same, given away: whoever gets it frees it. For an endpoint that has not been used.");

  module.def(
      "mpi_endpoint",
      [](std::uintptr_t mpi_comm_address, const std::map<std::string, std::string>& overrides) {
        const Config config = read_config(overrides);
        const WithoutGil release;
        return std::make_unique<BoundEndpoint>(transport::mpi_endpoint(mpi_comm_address, config.timeout));
      },
      py::arg("mpi_comm_address"), py::arg("overrides") = py::dict(),
      "An endpoint of the same ranks as an MPI communicator, which it duplicates. Collective.");

  module.def("launcher_mismatch", &transport::launcher_mismatch_of, py::arg("mpi_comm_address"));
  transport::watch_forks_of_mpi();
}

}  // namespace gradientflow::bindings

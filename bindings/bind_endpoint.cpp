// gradientflow._core.Endpoint, and those whose messages the MPI library moves.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "../kernels/base/config.hpp"
#include "../kernels/base/forks.hpp"
#include "../kernels/collective/between/mpi_plugin.hpp"
#include "bindings.hpp"
#include "bound_endpoint.hpp"
#include "gil.hpp"

namespace gradientflow::bindings {

namespace py = pybind11;
using collective::mpi_plugin;

namespace {

const void* comm_at(std::uintptr_t address) {
  return reinterpret_cast<const void*>(address);  // NOLINT(*-no-int-to-ptr): from mpi4py
}

}  // namespace

void bind_endpoint(py::module_& module) {
  py::class_<BoundEndpoint>(module, "Endpoint")
      .def_property_readonly("rank", [](const BoundEndpoint& self) { return self.get().rank(); })
      .def_property_readonly("size", [](const BoundEndpoint& self) { return self.get().size(); })
      .def_property_readonly("transport", [](const BoundEndpoint& self) { return name_of(self.get().kind()); })
      .def(
          "duplicate",
          [](const BoundEndpoint& self) { return std::make_unique<BoundEndpoint>(self.get().duplicate()); },
          "Another endpoint of the same ranks. Over TCP not collective, but all make their duplicates in one order.")
      .def_property_readonly(
          "mpi",
          [](const BoundEndpoint& self) {
            const transport::Endpoint& endpoint = self.get();
            return endpoint.has_mpi_communicator() ? std::optional(mpi_plugin().handle(endpoint)) : std::nullopt;
          },
          "The handle of its MPI communicator; None without one.")
      .def(
          "release_mpi", [](BoundEndpoint& self) { return mpi_plugin().release(*self.take()); },
          "The same, given away: whoever gets it frees it. For an endpoint that has not been used.");

  module.def(
      "mpi_endpoint",
      [](std::uintptr_t mpi_comm_address, const std::map<std::string, std::string>& overrides) {
        const Config config = read_config(overrides);
        const WithoutGil release;
        return std::make_unique<BoundEndpoint>(mpi_plugin().endpoint(comm_at(mpi_comm_address), config.timeout));
      },
      py::arg("mpi_comm_address"), py::arg("overrides") = py::dict(),
      "An endpoint of the same ranks as an MPI communicator, which it duplicates. Collective.");

  module.def(
      "launcher_mismatch",
      [](std::uintptr_t mpi_comm_address) { return mpi_plugin().launcher_mismatch(comm_at(mpi_comm_address)); },
      py::arg("mpi_comm_address"));
  module.def(
      "watch_forks", [] { static_cast<void>(count_forks()); },
      "Processes forked off this one from now on make no endpoint of its MPI. Making one has the same effect.");
}

}  // namespace gradientflow::bindings

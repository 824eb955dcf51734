// gradientflow._core.Endpoint, and endpoints whose messages the MPI library moves.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "../kernels/base/config.hpp"
#include "../kernels/base/forks.hpp"
#include "../kernels/collective/between/mpi_plugin.hpp"
#include "../kernels/transport/meeting/address.hpp"
#include "../kernels/transport/meeting/introduced.hpp"
#include "../kernels/transport/meeting/transport_choice.hpp"
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
      .def_property_readonly("transport", [](const BoundEndpoint& self) { return self.get().transport().name; })
      .def(
          "duplicate",
          [](const BoundEndpoint& self) { return std::make_unique<BoundEndpoint>(self.get().duplicate()); },
          "Another endpoint of the same ranks. Over TCP not collective, but all make their duplicates in one order.")
      .def_property_readonly(
          "mpi",
          [](const BoundEndpoint& self) {
            const transport::Endpoint* const by_mpi = self.get().by_mpi();
            return by_mpi != nullptr ? std::optional(mpi_plugin().handle(*by_mpi)) : std::nullopt;
          },
          "The handle of its MPI communicator; None without one.")
      .def(
          "release_mpi",
          [](BoundEndpoint& self) {
            if (self.get().transport().is_mpi) {
              return mpi_plugin().release(*self.take());
            }
            const WithoutGil release;
            self.get().check_mpi_not_ended();
            auto copy = self.get().by_mpi()->duplicate();
            return mpi_plugin().release(*self.get().keep(std::move(copy)));
          },
          "The same, given away: whoever gets it frees it. For an endpoint that has not been used; it is gone then, "
          "unless messages travel over TCP: it keeps a duplicate. Collective.")
      .def_property_readonly(
          "remark", [](const BoundEndpoint& self) { return self.get().remark(); },
          "Why messages travel as they do; empty where there was nothing to choose.");

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
      "introduced",
      [](std::uintptr_t mpi_comm_address, const std::map<std::string, std::string>& overrides,
         const std::string& classes) {
        const Config config = read_config(overrides);
        const WithoutGil release;
        return std::make_unique<BoundEndpoint>(transport::introduced(
            mpi_plugin().endpoint(comm_at(mpi_comm_address), config.timeout), config, &poll_signals, classes));
      },
      py::arg("mpi_comm_address"), py::arg("overrides") = py::dict(), py::arg("classes") = transport::device_classes,
      "The same, or one over TCP, as the setting `transport` says. `classes`: where the system describes its devices. "
      "Collective.");

  module.def(
      "choice_between_hosts",
      [](const std::map<std::string, std::string>& overrides) {
        Config config = read_config(overrides);
        const WithoutGil release;
        const transport::Until until(config.timeout);
        const transport::Candidate here = transport::candidate(config, until);
        transport::Candidate there = here;
        there.host_key += 1;
        const transport::TransportChoice choice = transport::choose_transport({here, there});
        if (choice.is_tcp) {
          static_cast<void>(transport::choose_address(config.interface, "", until));  // throws
        }
        return std::tuple(choice.transport().name, choice.is_asked_for ? "asked for" : choice.why, config.interface);
      },
      py::arg("overrides") = py::dict(),
      "Transport of an MPI job on hosts like this one, the reason, and the interfaces at which it would listen.");

  module.def(
      "launcher_mismatch",
      [](std::uintptr_t mpi_comm_address) { return mpi_plugin().launcher_mismatch(comm_at(mpi_comm_address)); },
      py::arg("mpi_comm_address"));
  module.def(
      "watch_forks", [] { static_cast<void>(count_forks()); },
      "Processes forked off this one from now on make no endpoint of its MPI. Making one has the same effect.");
}

}  // namespace gradientflow::bindings

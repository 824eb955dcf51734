// gradientflow._core_testing.mpi: what a communicator does with the MPI library, without the agreement of the ranks
// that comes before it.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>

#include "../../kernels/transport/mpi/mpi.hpp"
#include "../gil.hpp"
#include "testing.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;
using transport::MpiCommunicator;

std::unique_ptr<MpiCommunicator> make(std::uintptr_t address, double timeout) {
  const WithoutGil release;
  return std::make_unique<MpiCommunicator>(*reinterpret_cast<MPI_Comm*>(address),  // NOLINT(*-no-int-to-ptr)
                                           timeout);
}

// The part is given back at once.
void split(const MpiCommunicator& whole, int color, int key) {
  const WithoutGil release;
  transport::free(whole.split(color, key, {}));
}

}  // namespace

void bind_mpi(py::module_& module) {
  py::module_ mpi = module.def_submodule("mpi", "The MPI library, waited for.");
  py::class_<MpiCommunicator>(mpi, "Communicator")
      .def(py::init(&make), py::arg("address"), py::arg("timeout"))
      .def("split", &split, py::arg("color"), py::arg("key"));
}

}  // namespace gradientflow::bindings

// What a communicator does with the MPI library, without the agreement of the ranks
// that comes before it.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <gradientflow/collective/between/mpi_plugin.hpp>
#include <memory>

#include "native.hpp"

namespace gradientflow::native {
namespace {

namespace py = pybind11;
using transport::Endpoint;

// A type of this file's: tcp.cpp, in the same library, has Python hold an Endpoint in another way.
struct Communicator {
  std::unique_ptr<Endpoint> endpoint;
};

Communicator make(std::uintptr_t address, double timeout) {
  const py::gil_scoped_release released;
  return {collective::mpi_plugin().endpoint(reinterpret_cast<const void*>(address),  // NOLINT(*-no-int-to-ptr)
                                            timeout)};
}

// The part is given back at once.
void split(const Communicator& whole, int color, int key) {
  const py::gil_scoped_release released;
  static_cast<void>(whole.endpoint->split(color, key, {}));
}

}  // namespace
}  // namespace gradientflow::native

PYBIND11_MODULE(mpi, module) {
  namespace py = pybind11;
  using namespace gradientflow::native;  // NOLINT(google-build-using-namespace)
  translate_errors();
  py::class_<Communicator>(module, "Communicator", py::module_local())
      .def(py::init(&make), py::arg("address"), py::arg("timeout"))
      .def("split", &split, py::arg("color"), py::arg("key"));
}

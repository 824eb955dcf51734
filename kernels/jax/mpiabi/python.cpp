#include "python.hpp"

#include <dlfcn.h>
#include <pybind11/pybind11.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "../../base/error.hpp"

namespace gradientflow::mpiabi {
namespace {

namespace py = pybind11;

// Throws if this library belongs to another installation, whose communicators have another core.
void check_installation() {
  Dl_info here{};
  dladdr(reinterpret_cast<const void*>(&check_installation), &here);
  const auto library = py::str(py::module_::import("gradientflow._location").attr("jax_library")()).cast<std::string>();
  std::error_code absent;
  if (!std::filesystem::equivalent(here.dli_fname, library, absent)) {
    throw Error(ErrorKind::value, std::string("MPITRAMPOLINE_LIB is ") + here.dli_fname +
                                      ", but this Python's package gradientflow has " + library);
  }
}

}  // namespace

// Asks Python for the ranks: only Python has the code by which ranks meet, with its rules and errors.
std::shared_ptr<engine::Communicator> ranks_of_python() {
  const py::gil_scoped_acquire gil;
  try {
    check_installation();
    py::object communicator = py::module_::import("gradientflow.jax.processes").attr("ranks_of_processes")();
    auto ranks = communicator.attr("_native").cast<std::shared_ptr<engine::Communicator>>();
    communicator.release();  // the communicator stays until the process ends
    return ranks;
  } catch (const py::error_already_set& error) {
    throw Error(ErrorKind::value, py::str(error.value()).cast<std::string>());
  }
}

}  // namespace gradientflow::mpiabi

#include "python.hpp"

#include <pybind11/pybind11.h>

#include <string>

#include "../../base/error.hpp"

namespace gradientflow::mpiabi {

namespace py = pybind11;

// The one way for ranks to meet, with all its rules and errors, is written in Python.
std::shared_ptr<engine::Communicator> ranks_of_python() {
  const py::gil_scoped_acquire gil;
  try {
    py::object communicator = py::module_::import("gradientflow").attr("init")();
    auto ranks = communicator.attr("_native").cast<std::shared_ptr<engine::Communicator>>();
    communicator.release();  // it stays until the process ends
    return ranks;
  } catch (py::error_already_set& error) {
    if (error.matches(PyExc_SystemExit)) {  // this rank has served others, and is done
      error.restore();
      PyErr_Print();
    }
    throw Error(ErrorKind::value, py::str(error.value()).cast<std::string>());
  } catch (const py::cast_error&) {
    throw Error(ErrorKind::value,
                "the package gradientflow of this Python is another one than that of MPITRAMPOLINE_LIB");
  }
}

}  // namespace gradientflow::mpiabi

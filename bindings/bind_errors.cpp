// Errors of the core become the exceptions of gradientflow.errors.
#include <pybind11/pybind11.h>

#include <exception>

#include "../kernels/base/error.hpp"
#include "bindings.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;

const char* exception_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::value:
      return "ArgumentError";
    case ErrorKind::type:
      return "ArgumentTypeError";
    case ErrorKind::mismatch:
      return "MismatchError";
    case ErrorKind::closed:
      return "ClosedError";
    case ErrorKind::nonfinite:
      return "NonFiniteError";
    case ErrorKind::peer:
      return "PeerError";
    case ErrorKind::timeout:
      return "CommunicationTimeoutError";
    case ErrorKind::mpi:
      return "MPIError";
    case ErrorKind::system:
      return "SystemCallError";
    case ErrorKind::memory:
      return "NodeMemoryError";
    case ErrorKind::internal:
      return "InternalError";
  }
  return "InternalError";
}

}  // namespace

void bind_errors(py::module_& /*module*/) {
  py::register_exception_translator(
      [](std::exception_ptr pointer) {  // NOLINT(performance-unnecessary-value-param): pybind11 says so
        try {
          if (pointer) {
            std::rethrow_exception(pointer);
          }
        } catch (const Error& error) {
          const py::object type = py::module_::import("gradientflow.errors").attr(exception_name(error.kind()));
          PyErr_SetString(type.ptr(), error.what());
        }
      });
}

}  // namespace gradientflow::bindings

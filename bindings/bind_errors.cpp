// Translation of the core's errors into the exceptions of gradientflow.errors.
#include <pybind11/pybind11.h>

#include <exception>
#include <string>
#include <utility>

#include "../kernels/base/error.hpp"
#include "argument.hpp"
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

// Returns the names in gradientflow.errors, copied when the core is loaded. When the interpreter ends, modules are
// emptied before the last objects are destroyed, and calls of these objects may still fail.
const py::dict& errors() {
  static const auto* const all = new py::dict(  // NOLINT(*-owning-memory): lives as long as any object
      py::module_::import("gradientflow.errors").attr("__dict__").attr("copy")());
  return *all;
}

// Function that adds to an error's text, see explain_errors_by().
py::object& explanation() {
  static auto* const function = new py::object();  // NOLINT(*-owning-memory): as errors()
  return *function;
}

// Returns an object's text as Python shows it, or only its type if the text is too long or has several lines, or if the
// object's own code raises.
std::string shown(py::handle object) {
  constexpr std::size_t longest = 80;
  const auto type = py::str(py::type::of(object).attr("__name__")).cast<std::string>();
  try {
    auto text = py::repr(object).cast<std::string>();
    if (text.size() > longest || text.find('\n') != std::string::npos) {
      return "a " + type;
    }
    return object.is_none() ? text : text + " (" + type + ")";
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) {
      throw;
    }
    return "a " + type;
  }
}

}  // namespace

void explain_errors_by(py::object explain) { explanation() = std::move(explain); }

void raise(const Error& error) {
  PyObject* const type = PyDict_GetItemString(errors().ptr(), exception_name(error.kind()));
  const ErrorKind kind = error.kind();
  const bool concerns_ranks = kind == ErrorKind::mismatch || kind == ErrorKind::peer || kind == ErrorKind::timeout;
  if (concerns_ranks && explanation() && !explanation().is_none()) {
    PyObject* const text = PyObject_CallFunction(explanation().ptr(), "ss", exception_name(kind), error.what());
    if (text != nullptr) {
      PyErr_SetObject(type, text);
      Py_DECREF(text);
      return;
    }
    PyErr_Clear();
  }
  PyErr_SetString(type, error.what());
}

void refuse_argument(const char* name, const char* what, py::handle given, bool needs_whole_number) {
  const bool is_too_large = needs_whole_number && PyIndex_Check(given.ptr()) != 0 && PyBool_Check(given.ptr()) == 0;
  throw Error(is_too_large ? ErrorKind::value : ErrorKind::type,
              std::string(name) + " is " + what + ", not " + shown(given));
}

void bind_errors(py::module_& module) {
  errors();
  // Export `raise` to modules that are compiled elsewhere: see bench/native/native.hpp.
  module.attr("raise_error") = py::capsule(reinterpret_cast<void*>(&raise));  // NOLINT(*-reinterpret-cast)
  py::register_exception_translator(
      [](std::exception_ptr pointer) {  // NOLINT(performance-unnecessary-value-param): pybind11's type
        try {
          if (pointer) {
            std::rethrow_exception(pointer);
          }
        } catch (const Error& error) {
          raise(error);
        }
      });
}

}  // namespace gradientflow::bindings

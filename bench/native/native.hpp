// What the modules of native code share: they are compiled where they are used, against the installed headers and
// library.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <gradientflow/base/error.hpp>

namespace gradientflow::native {

inline const pybind11::call_guard<pybind11::gil_scoped_release> without_gil;

// Errors of the core become the exceptions of gradientflow.errors in what is called of this module, too: the core's own
// translation reaches it only where both were compiled with the same version of pybind11.
inline void translate_errors() {
  static const auto raise = reinterpret_cast<void (*)(const Error&)>(
      pybind11::module_::import("gradientflow._core").attr("raise_error").cast<pybind11::capsule>().get_pointer());
  pybind11::register_local_exception_translator(
      [](std::exception_ptr pointer) {  // NOLINT(performance-unnecessary-value-param): pybind11 says so
        try {
          if (pointer) {
            std::rethrow_exception(pointer);
          }
        } catch (const Error& error) {
          raise(error);
        }
      });
}

}  // namespace gradientflow::native

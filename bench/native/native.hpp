// Helpers of the native modules, which are compiled on first use against the installed headers and library.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <exception>
#include <gradientflow/base/error.hpp>
#include <vector>

namespace gradientflow::native {

inline const pybind11::call_guard<pybind11::gil_scoped_release> without_gil;

template <class T = void>
T* pointer_to(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);  // NOLINT(performance-no-int-to-ptr): an address from Python
}

template <class T>
std::vector<T*> pointers_to(const std::vector<std::uintptr_t>& addresses) {
  std::vector<T*> pointers;
  pointers.reserve(addresses.size());
  for (const std::uintptr_t address : addresses) {
    pointers.push_back(pointer_to<T>(address));
  }
  return pointers;
}

// Translates errors of the core to the exceptions of gradientflow.errors in this module: the core's own translation
// applies here only if both were compiled with the same version of pybind11.
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

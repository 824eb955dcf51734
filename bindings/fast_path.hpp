// Fast paths from Python into the core, past the methods in Python. A method such as
//
//     def allreduce(self, x, op="sum", algorithm="auto", out=None, wire=None, *, label=None):
//         self._native.allreduce(...)
//
// has a fast path that replaces it in the class: an object that takes the arguments as CPython has them on its stack,
// gets `self._native`, and calls the core. That saves a small call half of its time. Arguments are converted by the
// same types as in pybind11's bindings. Unusual calls (another type of `_native`, an argument that the fast path does
// not know) go to the method itself. The object also has the method's name, signature and documentation.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <initializer_list>
#include <span>
#include <utility>

#include "../kernels/base/error.hpp"
#include "argument.hpp"

namespace gradientflow::bindings {

// Arguments of a call, by the parameters after `self`; nullptr for an argument that was not given.
using Given = std::span<PyObject* const>;

[[nodiscard]] inline bool is_none(PyObject* given) { return given == nullptr || given == Py_None; }

// Returns a new reference, or nullptr. If no Python error is set with nullptr, the method has to serve the call.
using FastPath = PyObject* (*)(PyObject* native, Given given);

// Makes the Python object of a fast path to objects of the type `native`. `parameters`: names of the parameters after
// `self`; all after "*" are keyword-only.
pybind11::object make_fast_path(const pybind11::type& native, FastPath path,
                                std::initializer_list<const char*> parameters);

// Converts an argument as the bindings do, with their errors.
template <class T>
T converted(PyObject* given, T by_default) {
  if (given == nullptr) {
    return by_default;
  }
  pybind11::detail::make_caster<T> caster;
  caster.load(given, false);
  return pybind11::detail::cast_op<T>(std::move(caster));
}

// Calls `function` with the object of the core, the arguments, and the Python object that holds the object of the core.
// `function` returns the result, or an empty object if the method has to serve the call.
template <class T, pybind11::object (*function)(T&, Given, pybind11::handle)>
PyObject* fast_path(PyObject* native, Given given) {
  try {
    auto* const holder = reinterpret_cast<pybind11::detail::instance*>(native)->get_value_and_holder().value_ptr();
    return function(*static_cast<T*>(holder), given, native).release().ptr();
  } catch (const Error& error) {
    raise(error);
  } catch (pybind11::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

// Adds a fast path to the attribute `fast_paths` of a bound class, a dict by the name of the method.
template <auto function, class T, class... Options>
void def_fast_path(pybind11::class_<T, Options...>& cls, const char* name,
                   std::initializer_list<const char*> parameters) {
  if (!pybind11::hasattr(cls, "fast_paths")) {
    cls.attr("fast_paths") = pybind11::dict();
  }
  cls.attr("fast_paths")[name] = make_fast_path(cls, &fast_path<T, function>, parameters);
}

}  // namespace gradientflow::bindings

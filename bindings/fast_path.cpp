#include "fast_path.hpp"

#include <structmember.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;

constexpr std::size_t most_parameters = 8;

struct Object {
  PyObject_HEAD  // NOLINT: a macro of CPython's
      vectorcallfunc call;
  PyObject* method;  // method of the class, which this object replaces; nullptr until it replaces a method
  PyTypeObject* native;
  FastPath path;
  PyObject* native_name;  // "_native"
  std::array<PyObject*, most_parameters> parameters;
  std::size_t parameter_count;
  std::size_t positional_count;  // number of parameters that may be positional; further parameters are keyword-only
};

// Sorts the arguments by parameters. Returns false if they do not fit: the method then raises the error.
bool sort_arguments(const Object& self, std::span<PyObject* const> positional, PyObject* keywords,
                    std::span<PyObject*> given) {
  if (positional.size() > self.positional_count) {
    return false;
  }
  std::copy(positional.begin(), positional.end(), given.begin());
  const Py_ssize_t number = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
  PyObject* const* const values = positional.data() + positional.size();
  for (Py_ssize_t i = 0; i < number; ++i) {  // names are interned
    const auto* const end = self.parameters.data() + self.parameter_count;
    const auto* const found = std::find(self.parameters.data(), end, PyTuple_GET_ITEM(keywords, i));
    const auto place = static_cast<std::size_t>(found - self.parameters.data());
    if (found == end || place < positional.size()) {
      return false;
    }
    given[place] = values[i];
  }
  return true;
}

PyObject* call(PyObject* object, PyObject* const* arguments, std::size_t flags, PyObject* keywords) {
  const Object& self = *reinterpret_cast<Object*>(object);
  const auto number = static_cast<std::size_t>(PyVectorcall_NARGS(flags));
  if (self.method == nullptr) {
    PyErr_SetString(PyExc_TypeError, "this fast path stands before no method");
    return nullptr;
  }
  std::array<PyObject*, most_parameters> given{};
  const std::span<PyObject*> places(given.data(), self.parameter_count);
  if (number > 0 && sort_arguments(self, {arguments + 1, number - 1}, keywords, places)) {
    const auto native = py::reinterpret_steal<py::object>(PyObject_GetAttr(arguments[0], self.native_name));
    if (!native) {
      PyErr_Clear();
    } else if (Py_TYPE(native.ptr()) == self.native) {
      PyObject* const result = self.path(native.ptr(), places);
      if (result != nullptr || PyErr_Occurred() != nullptr) {
        return result;
      }
    }
  }
  return PyObject_Vectorcall(self.method, arguments, flags, keywords);
}

PyObject* bind_to(PyObject* self, PyObject* object, PyObject* /*type*/) {
  return object == nullptr ? Py_NewRef(self) : PyMethod_New(self, object);
}

// Returns an attribute of the method, or either of the two attributes that this object has itself.
PyObject* attribute(PyObject* object, PyObject* name) {
  PyObject* const method = reinterpret_cast<Object*>(object)->method;
  const bool own = PyUnicode_CompareWithASCIIString(name, "__wrapped__") == 0 ||
                   PyUnicode_CompareWithASCIIString(name, "__class__") == 0;
  return method == nullptr || own ? PyObject_GenericGetAttr(object, name) : PyObject_GetAttr(method, name);
}

void destroy(PyObject* object) {
  auto& self = *reinterpret_cast<Object*>(object);
  PyTypeObject* const type = Py_TYPE(object);
  Py_XDECREF(self.method);
  Py_XDECREF(self.native_name);
  for (PyObject* const parameter : self.parameters) {
    Py_XDECREF(parameter);
  }
  type->tp_free(object);
  Py_DECREF(type);
}

py::object make_type() {
  static std::array<PyMemberDef, 3> members = {{
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(Object, call), READONLY, nullptr},
      {"__wrapped__", T_OBJECT, offsetof(Object, method), 0, nullptr},
      {},
  }};
  static std::array<PyType_Slot, 6> slots = {{
      {Py_tp_members, members.data()},
      {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
      {Py_tp_descr_get, reinterpret_cast<void*>(&bind_to)},
      {Py_tp_getattro, reinterpret_cast<void*>(&attribute)},
      {Py_tp_dealloc, reinterpret_cast<void*>(&destroy)},
      {},
  }};
  static PyType_Spec spec = {"gradientflow._core.FastPath", sizeof(Object), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
                             slots.data()};
  auto type = py::reinterpret_steal<py::object>(PyType_FromSpec(&spec));
  if (!type) {
    throw py::error_already_set();
  }
  return type;
}

}  // namespace

py::object make_fast_path(const py::type& native, FastPath path, std::initializer_list<const char*> parameters) {
  const py::object type = make_type();
  auto* const as_type = reinterpret_cast<PyTypeObject*>(type.ptr());
  auto object = py::reinterpret_steal<py::object>(as_type->tp_alloc(as_type, 0));
  if (!object) {
    throw py::error_already_set();
  }
  auto& self = *reinterpret_cast<Object*>(object.ptr());  // filled with zeros by tp_alloc
  self.call = &call;
  self.native = reinterpret_cast<PyTypeObject*>(native.ptr());
  self.path = path;
  self.native_name = PyUnicode_InternFromString("_native");
  self.positional_count = parameters.size();
  for (const char* const parameter : parameters) {
    if (std::string_view(parameter) == "*") {
      self.positional_count = self.parameter_count;
      continue;
    }
    self.parameters.at(self.parameter_count++) = PyUnicode_InternFromString(parameter);
  }
  return object;
}

}  // namespace gradientflow::bindings

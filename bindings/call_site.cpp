#include "call_site.hpp"

#include <frameobject.h>

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000
#define Py_BUILD_CORE  // NOLINT(*-macro-usage): 3.11 has no functions that read a frame without its object
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#endif

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;

constexpr std::size_t most_codes = 20'000;  // programs that make code all the time must not fill the memory
constexpr int most_frames = 100;

// Code objects of frames met so far, held for good, since the log refers to them: true for the user's program.
struct Codes {
  struct Recent {
    PyCodeObject* code = nullptr;
    bool is_users = false;
  };
  std::array<Recent, 64> recent;
  std::unordered_map<PyCodeObject*, bool> all;
  py::object is_users;
};

Codes& codes() {
  static auto* const table = new Codes();  // NOLINT(*-owning-memory): outlives the interpreter
  return *table;
}

bool ask(const Codes& table, PyCodeObject* code) {
  if (!table.is_users) {
    return true;
  }
  PyObject *kind = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&kind, &value, &traceback);
  PyObject* const answer = PyObject_CallOneArg(table.is_users.ptr(), code->co_filename);
  const bool is_users = answer != nullptr && PyObject_IsTrue(answer) == 1;
  Py_XDECREF(answer);
  PyErr_Restore(kind, value, traceback);
  return is_users;
}

// Tells if code belongs to the user's program. The code is held, unless there are too many: then the answer is no.
bool is_users(PyCodeObject* code) {
  Codes& table = codes();
  Codes::Recent& recent = table.recent[(reinterpret_cast<std::uintptr_t>(code) >> 5U) % table.recent.size()];
  if (recent.code == code) {
    return recent.is_users;
  }
  auto found = table.all.find(code);
  if (found == table.all.end()) {
    if (table.all.size() >= most_codes) {
      return false;
    }
    const bool answer = ask(table, code);  // may run Python code, and so change the table
    found = table.all.try_emplace(code, answer).first;
    Py_INCREF(reinterpret_cast<PyObject*>(code));
  }
  recent = {code, found->second};
  return found->second;
}

std::int32_t offset_in(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return PyFrame_GetLasti(frame);
#else
  return frame->f_lasti * std::int32_t{sizeof(_Py_CODEUNIT)};
#endif
}

// Returns the place of the innermost frame. Since Python 3.11 a frame gets its object on demand, which takes as long as
// a third of a small call; this function does without.
engine::CallSite innermost() {
#if PY_VERSION_HEX >= 0x030D0000
  auto* const frame = PyThreadState_Get()->current_frame;
#elif PY_VERSION_HEX >= 0x030B0000
  auto* const frame = PyThreadState_Get()->cframe->current_frame;
#else
  auto* const frame = PyEval_GetFrame();
#endif
  if (frame == nullptr) {
    return {};
  }
#if PY_VERSION_HEX >= 0x030C0000
  PyObject* const code = PyUnstable_InterpreterFrame_GetCode(frame);
  Py_DECREF(code);  // the frame holds it
  if (PyCode_Check(code) == 0) {
    return {};  // the interpreter's entry, while a frame that C has called is cleared
  }
  return {code, PyUnstable_InterpreterFrame_GetLasti(frame)};
#elif PY_VERSION_HEX >= 0x030B0000
  return {frame->f_code, _PyInterpreterFrame_LASTI(frame) * std::int32_t{sizeof(_Py_CODEUNIT)}};
#else
  return {frame->f_code, offset_in(frame)};
#endif
}

engine::CallSite site_of_caller() {
  engine::CallSite site = innermost();
  if (site.code != nullptr && is_users(static_cast<PyCodeObject*>(const_cast<void*>(site.code)))) {  // NOLINT
    return site;
  }
  site = {};
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(reinterpret_cast<PyObject*>(frame));
  for (int i = 0; frame != nullptr && site.code == nullptr && i < most_frames; ++i) {
    PyCodeObject* const code = PyFrame_GetCode(frame);
    if (is_users(code)) {
      site = {code, offset_in(frame)};
    }
    Py_DECREF(reinterpret_cast<PyObject*>(code));
    PyFrameObject* const outer = site.code == nullptr ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(reinterpret_cast<PyObject*>(frame));
    frame = outer;
  }
  Py_XDECREF(reinterpret_cast<PyObject*>(frame));
  return site;
}

}  // namespace

void find_users_code_by(py::object is_users) { codes().is_users = std::move(is_users); }

py::object code_of(const engine::CallSite& site) {
  return site.code == nullptr
             ? py::none()
             : py::reinterpret_borrow<py::object>(static_cast<PyObject*>(const_cast<void*>(site.code)));  // NOLINT
}

int line_of(const engine::CallSite& site) {
  if (site.code == nullptr) {
    return 0;
  }
  return PyCode_Addr2Line(static_cast<PyCodeObject*>(const_cast<void*>(site.code)), site.offset);  // NOLINT
}

AtCallSite::AtCallSite() {
  if (engine::CallLog::is_on()) {
    site_ = &engine::call_site();
    before_ = std::exchange(*site_, site_of_caller());
  }
}

}  // namespace gradientflow::bindings

// Release of Python's global interpreter lock (GIL) while the core works.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <memory>
#include <optional>

namespace gradientflow::bindings {

// Releases the GIL during its lifetime, like pybind11's gil_scoped_release, and can replace it in a py::call_guard,
// too. While the interpreter ends, only the main thread can get the GIL back. Python before 3.14 ends any other thread
// that tries, whereupon the C++ runtime aborts the process. With this class, such a thread stops until the process
// ends, as in Python 3.14.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {  // glibc's pthread_exit unwinds the stack
      while (true) {
        pause();
      }
    }
  }

 private:
  PyThreadState* state_;
};

// Keeps the GIL until the core calls this object, and then releases it until this object ends. Passed with std::ref as
// an engine::Communicator::Release, because it cannot be copied.
class ReleaseGil {
 public:
  void operator()() {
    if (!released_) {
      released_.emplace();
    }
  }

 private:
  std::optional<WithoutGil> released_;
};

// Does work with the GIL, in any thread. While the interpreter ends, the thread stops, as above.
template <class Work>
auto with_gil(Work work) -> decltype(work()) {
  std::unique_ptr<pybind11::gil_scoped_acquire> gil;
  try {
    gil = std::make_unique<pybind11::gil_scoped_acquire>();
  } catch (...) {
    while (true) {
      pause();
    }
  }
  return work();
}

// Runs the handlers of Python's pending signals, and throws their exceptions. Python runs handlers in the main thread
// only. Needs the GIL released.
inline void poll_signals() {
  if (getpid() != gettid()) {
    return;
  }
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) {
    throw pybind11::error_already_set();
  }
}

}  // namespace gradientflow::bindings

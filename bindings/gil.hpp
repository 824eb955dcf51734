// Python's global interpreter lock, given up while the core works.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <memory>
#include <optional>

namespace gradientflow::bindings {

// Gives the lock up for as long as it lives, like pybind11's gil_scoped_release, also in a call_guard. Once the
// interpreter ends, a thread other than the main one cannot have it back: Python before 3.14 ends such a thread right
// there, which the C++ runtime answers with an abort of the process. Here the thread stops, as in Python 3.14, until
// the process is gone.
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

// Keeps the lock until the core says that others may have it: see engine::Communicator::LetGo, which refers to it.
class GilToLetGo {
 public:
  void operator()() {
    if (!released_) {
      released_.emplace();
    }
  }

 private:
  std::optional<WithoutGil> released_;
};

// Does work with the lock, in any thread. At the end of the interpreter the thread stops, as above.
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

// Runs the handlers of Python's pending signals, which Python does in the main thread only. Throws what they raise. To
// be called without the lock.
inline void attend_to_signals() {
  if (getpid() != gettid()) {
    return;
  }
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) {
    throw pybind11::error_already_set();
  }
}

}  // namespace gradientflow::bindings

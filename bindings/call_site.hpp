// Place in the Python program from which a call comes, for the log of calls.
#pragma once

#include <pybind11/pybind11.h>

#include "../kernels/engine/calls/call_log.hpp"

namespace gradientflow::bindings {

// During its lifetime, the calls of this thread come from the innermost Python frame whose code belongs to the user's
// program. Needs the GIL at its beginning. Can stand before WithoutGil in a py::call_guard.
class AtCallSite {
 public:
  AtCallSite();
  AtCallSite(const AtCallSite&) = delete;
  AtCallSite& operator=(const AtCallSite&) = delete;
  ~AtCallSite() {
    if (site_ != nullptr) {
      *site_ = before_;
    }
  }

 private:
  engine::CallSite* site_ = nullptr;  // this thread's, if calls are recorded
  engine::CallSite before_;
};

// Sets the function that tells from a file's name if its code belongs to the user's program. Without it, all code does.
void find_users_code_by(pybind11::object is_users);

// Return the code object of a site, or None, and the line, or 0.
[[nodiscard]] pybind11::object code_of(const engine::CallSite& site);
[[nodiscard]] int line_of(const engine::CallSite& site);

}  // namespace gradientflow::bindings

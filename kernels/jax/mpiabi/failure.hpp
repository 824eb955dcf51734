// Errors for XLA: a code, and the text of this thread's last failure, which XLA requests at once.
#pragma once

#include <exception>
#include <string>

#include "abi.hpp"

namespace gradientflow::mpiabi {

int fail(const std::string& sentence, Code code = failed);

// Does the work of a function of the interface, which no exception may leave.
template <class Work>
int guarded(const Work& work) {
  try {
    work();
    return success;
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}

}  // namespace gradientflow::mpiabi

// How errors reach XLA: as a code, and as the text of this thread's last failure, for which XLA asks at once.
#pragma once

#include <exception>
#include <string>

#include "abi.hpp"

namespace gradientflow::mpiabi {

int fail(const std::string& sentence, Code code = failed);

// Does the work of a function of the interface, out of which no exception may come.
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

// Conversion of each exception to a status, and of its sentence to this thread's last error message.
#pragma once

#include <string>

#include "../base/error.hpp"
#include "gradientflow.h"

namespace gradientflow::c {

// Returns the status of the exception that is being handled, and stores its message.
gf_status caught() noexcept;

// Does work, and returns its status.
template <class Work>
gf_status guarded(Work work) noexcept {
  try {
    work();
    return GF_SUCCESS;
  } catch (...) {
    return caught();
  }
}

// Does work without a status: a failure leaves the last message unchanged.
template <class Work>
void quietly(Work work) noexcept {
  try {
    work();
  } catch (...) {  // NOLINT(bugprone-empty-catch): the result says so
  }
}

// Returns the object of a caller's pointer. Throws Error(value) for NULL.
template <class T>
T& given(T* pointer, const char* name) {
  if (pointer == nullptr) {
    throw Error(ErrorKind::value, std::string(name) + " is NULL");
  }
  return *pointer;
}

// Returns the caller's pointer to a result, set to NULL until there is one.
template <class T>
T*& result_of(T** place, const char* name) {
  return given(place, name) = nullptr;
}

}  // namespace gradientflow::c

// No exception leaves the C functions: each becomes a status, and its sentence this thread's last error message.
#pragma once

#include <string>

#include "../base/error.hpp"
#include "gradientflow.h"

namespace gradientflow::c {

// The status of the exception that is being handled; stores its message.
gf_status caught() noexcept;

template <class Work>
gf_status guarded(Work work) noexcept {
  try {
    work();
    return GF_SUCCESS;
  } catch (...) {
    return caught();
  }
}

// For functions that return no status: a failure leaves the last message unchanged.
template <class Work>
void quietly(Work work) noexcept {
  try {
    work();
  } catch (...) {  // NOLINT(bugprone-empty-catch): the result says so
  }
}

// The object behind a pointer from the caller. Throws Error(value) for NULL.
template <class T>
T& given(T* pointer, const char* name) {
  if (pointer == nullptr) {
    throw Error(ErrorKind::value, std::string(name) + " is NULL");
  }
  return *pointer;
}

// The caller's pointer to a result, set to NULL until there is one.
template <class T>
T*& result_of(T** place, const char* name) {
  return given(place, name) = nullptr;
}

}  // namespace gradientflow::c

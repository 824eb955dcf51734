// Errors of the core: three families of kinds, each error with one clear sentence.
//
// An error of use (value, type, mismatch, closed) is thrown before anything is sent. A failure outside the library
// (peer, timeout, mpi, system) names the failed operation and the rank. internal is a bug of the library. The core
// throws and never aborts.
#pragma once

#if __cplusplus < 202002L
#error "the C++ headers of GradientFlow need C++20: -std=c++20, see `gradientflow config --cxxflags`"
#endif

#include <stdexcept>
#include <string>

namespace gradientflow {

enum class ErrorKind {
  value,      // an argument has an invalid value
  type,       // an argument has an unsupported type or dtype
  mismatch,   // ranks made different calls
  closed,     // the communicator, pool or handle is closed
  nonfinite,  // a gradient is infinite or NaN
  peer,       // another rank died or gave up
  timeout,    // a wait took longer than its limit
  mpi,        // the MPI library returned an error
  system,     // the operating system returned an error
  memory,     // there is not enough memory
  internal,   // a broken invariant of the library
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, int code = 0)
      : std::runtime_error(message), kind_(kind), code_(code) {}
  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }
  [[nodiscard]] int code() const noexcept { return code_; }  // errno, if the kind is system

 private:
  ErrorKind kind_;
  int code_;
};

// Returns an Error of kind system: "what: <strerror(code)>".
[[nodiscard]] Error system_error(const std::string& what, int code);

}  // namespace gradientflow

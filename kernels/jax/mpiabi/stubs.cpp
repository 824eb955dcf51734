// Weak definitions of all names that MPItrampoline looks up: a function reports that it is not served, and a constant
// has no meaning. Served names have strong definitions in other files, which replace these.
#include <cstdio>
#include <string>

#include "abi.hpp"
#include "failure.hpp"

namespace gradientflow::mpiabi {
namespace {

int not_served(const char* name) {
  const std::string text = std::string("GradientFlow stands in for MPI behind JAX alone, and does not serve ") +
                           (name + sizeof "MPIABI_" - 1);
  std::fprintf(stderr, "gradientflow: %s\n", text.c_str());  // NOLINT(*-vararg): one write, so that it stays whole
  return fail(text, unsupported);
}

}  // namespace
}  // namespace gradientflow::mpiabi

#define FUNCTION(name)                                                    \
  extern "C" __attribute__((weak, visibility("default"))) int name(void); \
  int name() { return gradientflow::mpiabi::not_served(#name); }
#define CONSTANT(name)                                                                           \
  extern "C" __attribute__((weak, visibility("default"))) const gradientflow::mpiabi::Word name; \
  const gradientflow::mpiabi::Word name = 0x40000000 + __COUNTER__;
#include "../../third_party/mpitrampoline/names.inc"

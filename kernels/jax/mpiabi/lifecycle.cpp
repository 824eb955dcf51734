// Beginning and end, and queries about them.
#include <cstring>
#include <string>

#include "../../base/version.hpp"
#include "failure.hpp"
#include "job.hpp"

using namespace gradientflow::mpiabi;  // NOLINT(google-build-using-namespace): its C functions are below

namespace {

constexpr int thread_multiple = 3;  // answer to every request: XLA requests less, but calls from several threads

}  // namespace

MPIABI_FUNCTION MPIABI_Init_thread(int* /*argc*/, char*** /*argv*/, int /*required*/, int* provided) {
  *provided = thread_multiple;
  return guarded([] { job().begin(); });
}

MPIABI_FUNCTION MPIABI_Init(int* /*argc*/, char*** /*argv*/) {
  return guarded([] { job().begin(); });
}

MPIABI_FUNCTION MPIABI_Initialized(int* flag) {
  *flag = job().has_begun() ? 1 : 0;
  return success;
}

MPIABI_FUNCTION MPIABI_Finalize() {
  return guarded([] { job().finish(); });
}

MPIABI_FUNCTION MPIABI_Finalized(int* flag) {
  *flag = job().has_finished() ? 1 : 0;
  return success;
}

MPIABI_FUNCTION MPIABI_Is_thread_main(int* flag) {
  *flag = 1;  // true for every thread: all threads are served alike
  return success;
}

MPIABI_FUNCTION MPIABI_Query_thread(int* level) {
  *level = thread_multiple;
  return success;
}

MPIABI_FUNCTION MPIABI_Get_version(int* version, int* subversion) {
  *version = 3;
  *subversion = 1;
  return success;
}

MPIABI_FUNCTION MPIABI_Get_library_version(char* text, int* length) {
  const std::string name = "GradientFlow " + std::string(gradientflow::library_version()) + " in place of MPI";
  std::memcpy(text, name.c_str(), name.size() + 1);
  *length = static_cast<int>(name.size());
  return success;
}

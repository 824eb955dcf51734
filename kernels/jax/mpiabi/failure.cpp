#include "failure.hpp"

#include <algorithm>
#include <cstring>

namespace gradientflow::mpiabi {
namespace {

constexpr std::size_t longest = 1023;  // MPI_MAX_ERROR_STRING of the interface, less the terminating zero

std::string& last_failure() {
  thread_local std::string text;
  return text;
}

}  // namespace

int fail(const std::string& sentence, Code code) {
  last_failure() = sentence;
  return code;
}

}  // namespace gradientflow::mpiabi

MPIABI_FUNCTION MPIABI_Error_string(int /*code*/, char* text, int* length) {
  const std::string sentence = "GradientFlow: " + gradientflow::mpiabi::last_failure();
  const std::size_t size = std::min(sentence.size(), gradientflow::mpiabi::longest);
  std::memcpy(text, sentence.data(), size);
  text[size] = '\0';
  *length = static_cast<int>(size);
  return gradientflow::mpiabi::success;
}

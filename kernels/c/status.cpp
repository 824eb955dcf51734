#include "status.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <new>
#include <system_error>

namespace gradientflow::c {
namespace {

// Last message. Its size is fixed, because the error may be a lack of memory; longer messages are cut.
thread_local std::array<char, 4096> last_message{};

gf_status remember(gf_status status, const char* message) noexcept {
  const std::size_t length = std::min(std::strlen(message), last_message.size() - 1);
  std::memcpy(last_message.data(), message, length);
  last_message[length] = '\0';
  return status;
}

gf_status status_of(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::value:
      return GF_ERROR_VALUE;
    case ErrorKind::type:
      return GF_ERROR_TYPE;
    case ErrorKind::mismatch:
      return GF_ERROR_MISMATCH;
    case ErrorKind::closed:
      return GF_ERROR_CLOSED;
    case ErrorKind::nonfinite:
      return GF_ERROR_NONFINITE;
    case ErrorKind::peer:
      return GF_ERROR_PEER;
    case ErrorKind::timeout:
      return GF_ERROR_TIMEOUT;
    case ErrorKind::mpi:
      return GF_ERROR_MPI;
    case ErrorKind::system:
      return GF_ERROR_SYSTEM;
    case ErrorKind::memory:
      return GF_ERROR_MEMORY;
    case ErrorKind::internal:
      return GF_ERROR_INTERNAL;
  }
  return GF_ERROR_INTERNAL;
}

}  // namespace

gf_status caught() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return remember(status_of(error.kind()), error.what());
  } catch (const std::bad_alloc&) {
    return remember(GF_ERROR_MEMORY, "there is not enough memory");
  } catch (const std::system_error& error) {
    return remember(GF_ERROR_SYSTEM, error.what());
  } catch (const std::exception& error) {
    return remember(GF_ERROR_INTERNAL, error.what());
  } catch (...) {
    return remember(GF_ERROR_INTERNAL, "an exception of an unknown type");
  }
}

}  // namespace gradientflow::c

const char* gf_last_error_message(void) { return gradientflow::c::last_message.data(); }

const char* gf_status_name(gf_status status) {
  switch (status) {
    case GF_SUCCESS:
      return "GF_SUCCESS";
    case GF_ERROR_VALUE:
      return "GF_ERROR_VALUE";
    case GF_ERROR_TYPE:
      return "GF_ERROR_TYPE";
    case GF_ERROR_MISMATCH:
      return "GF_ERROR_MISMATCH";
    case GF_ERROR_CLOSED:
      return "GF_ERROR_CLOSED";
    case GF_ERROR_PEER:
      return "GF_ERROR_PEER";
    case GF_ERROR_TIMEOUT:
      return "GF_ERROR_TIMEOUT";
    case GF_ERROR_MPI:
      return "GF_ERROR_MPI";
    case GF_ERROR_SYSTEM:
      return "GF_ERROR_SYSTEM";
    case GF_ERROR_MEMORY:
      return "GF_ERROR_MEMORY";
    case GF_ERROR_INTERNAL:
      return "GF_ERROR_INTERNAL";
    case GF_ERROR_NONFINITE:
      return "GF_ERROR_NONFINITE";
  }
  return "not a gf_status";
}

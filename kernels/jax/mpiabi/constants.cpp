// Constants that MPItrampoline reads when it loads this library.
#include "../../base/error.hpp"
#include "abi.hpp"
#include "job.hpp"

namespace gradientflow::mpiabi {

std::size_t size_of(Type type) {
  switch (type) {
    case Type::byte:
    case Type::int8:
    case Type::uint8:
      return 1;
    case Type::int16:
    case Type::uint16:
      return 2;
    case Type::int32:
    case Type::uint32:
    case Type::float32:
      return 4;
    case Type::int64:
    case Type::uint64:
    case Type::float64:
    case Type::complex64:
      return 8;
    case Type::complex128:
      return 16;
  }
  throw Error(ErrorKind::type, "XLA sends a type of MPI that is not served");
}

}  // namespace gradientflow::mpiabi

using namespace gradientflow::mpiabi;  // NOLINT(google-build-using-namespace): its constants are below

#define MPIABI_EXPORT extern "C" __attribute__((visibility("default")))

#define SERVED(name, value)               \
  MPIABI_EXPORT const Word MPIABI_##name; \
  const Word MPIABI_##name = static_cast<Word>(value);
#include "constants.inc"
#undef SERVED

MPIABI_EXPORT Group* const MPIABI_COMM_WORLD;
Group* const MPIABI_COMM_WORLD = &job().world;  // NOLINT(bugprone-throwing-static-initialization): has memory

// Version of the interface, which MPItrampoline compares with its own.
extern "C" {
__attribute__((visibility("default"))) int mpiwrapper_version_major = 2;
__attribute__((visibility("default"))) int mpiwrapper_version_minor = 10;
__attribute__((visibility("default"))) int mpiwrapper_version_patch = 0;
__attribute__((visibility("default"))) int mpiabi_version_major = 2;
__attribute__((visibility("default"))) int mpiabi_version_minor = 10;
__attribute__((visibility("default"))) int mpiabi_version_patch = 0;
__attribute__((visibility("default"))) void mpiwrapper_export_fortran_constants_() {}
}

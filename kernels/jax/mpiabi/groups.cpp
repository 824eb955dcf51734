// Communicators of MPI.
#include "failure.hpp"
#include "job.hpp"

using namespace gradientflow::mpiabi;  // NOLINT(google-build-using-namespace): its C functions are below

MPIABI_FUNCTION MPIABI_Comm_rank(const Group* group, int* rank) {
  *rank = group->ranks == nullptr ? -1 : group->ranks->rank();
  return success;
}

MPIABI_FUNCTION MPIABI_Comm_size(const Group* group, int* size) {
  *size = group->ranks == nullptr ? 0 : group->ranks->size();
  return success;
}

MPIABI_FUNCTION MPIABI_Comm_split(const Group* whole, int color, int key, Group** part) {
  return guarded([&] {
    *part = job().add();
    if (whole != &job().world) {
      throw gradientflow::Error(gradientflow::ErrorKind::value, "only the group of all ranks can be split");
    }
    job().split(color, key, **part);
  });
}

MPIABI_FUNCTION MPIABI_Comm_free(Group** group) {
  return guarded([&] {
    job().free(*group);
    *group = nullptr;
  });
}

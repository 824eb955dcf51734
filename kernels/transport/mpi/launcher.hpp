// Check that the launcher of this process belongs to the MPI library that the program uses. Another library's launcher,
// or PyTorch's torchrun, starts many jobs of one rank in place of one job, and each rank would work alone.
#pragma once

#include <mpi.h>

#include <string>

namespace gradientflow::transport {

// Returns the fault in how this process was started, in one sentence; empty if there is none. `comm`: the base of the
// new communicator; MPI_COMM_SELF shows that the program wants to be alone. MPI must be initialized.
[[nodiscard]] std::string launcher_mismatch(MPI_Comm comm);

}  // namespace gradientflow::transport

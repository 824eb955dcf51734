// Whether the launcher that started this process belongs to the MPI library that the program uses. Another library's,
// or PyTorch's torchrun, starts many jobs of one rank in place of one job, and each rank would work alone.
#pragma once

#include <mpi.h>

#include <string>

namespace gradientflow::transport {

// What is wrong with how this process was started, in one sentence; empty where nothing is. `comm`: what a communicator
// is to be made of; MPI_COMM_SELF shows that the program wants to be alone. MPI must be initialised.
[[nodiscard]] std::string launcher_mismatch(MPI_Comm comm);

}  // namespace gradientflow::transport

// Whether the launcher that started this process is one of the MPI library that the program uses. Another library's,
// and PyTorch's torchrun, start as many jobs of one rank as the job should have ranks, and each of them would work
// alone.
#pragma once

#include <mpi.h>

#include <string>

namespace gradientflow::transport {

// What is wrong with how this process was started, in one sentence; empty where nothing is. `comm` is what a
// communicator is to be made of: whoever gives MPI_COMM_SELF wants to be alone. MPI must be initialised.
[[nodiscard]] std::string launcher_trouble(MPI_Comm comm);

}  // namespace gradientflow::transport

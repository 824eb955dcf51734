// Communicators that are no longer used, but may still be sent something.
//
// The MPI library uses the identity of a communicator again once it has been freed. A message that arrives after that
// would be taken for one of the next communicator with the same identity, and a message of that one would be lost. So a
// communicator is freed only when the last messages of the other ranks, their notices of leaving, have been received;
// those that were never sent, by a rank that died, keep it for as long as the process lives.
#pragma once

#include <mpi.h>

#include <vector>

namespace gradientflow::transport {

// Frees `comm` now, or later, when a message with `tag` has come from each of `awaited`. Not collective.
void retire(MPI_Comm comm, std::vector<int> awaited, int tag) noexcept;

// Frees those that can be by now. MPI must not have been finalized.
void free_retired() noexcept;

}  // namespace gradientflow::transport

// Communicators that are no longer used, but may still be sent something.
//
// The MPI library uses the identity of a communicator again once it has been freed. A message that arrives after that
// would be taken for one of the next communicator with the same identity, and a message of that one would be lost. So a
// communicator is freed only when the last messages of the other ranks, their notices of leaving, have been received;
// those that were never sent, by a rank that died, keep it for as long as the process lives.
#pragma once

#include <mpi.h>

#include <memory>
#include <vector>

namespace gradientflow::transport {

// Frees `comm` now, or later, when a message with `tag` has come from each of `awaited`. Not collective.
void retire(MPI_Comm comm, std::vector<int> awaited, int tag) noexcept;

// Keeps `memory` until `requests`, of sends that read it, have ended, also beyond their communicator. A request that
// nobody completes keeps the communicator, too, in some MPI libraries, however often it is freed.
void finish_later(std::shared_ptr<const void> memory, std::vector<MPI_Request> requests) noexcept;

// Frees what can be by now. MPI must not have been finalized.
void free_retired() noexcept;

}  // namespace gradientflow::transport

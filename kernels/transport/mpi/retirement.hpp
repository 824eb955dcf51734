// Communicators that are no longer used, but may still receive messages.
//
// The MPI library reuses the identity of a communicator once it has been freed. A message that arrives after that would
// be taken for a message of the next communicator with that identity, and a message of that communicator would be lost.
// So a communicator is freed only when the last messages of its other ranks, their notices of leaving, have been
// received. If such a notice never comes, because its rank died, the communicator is never freed.
#pragma once

#include <mpi.h>

#include <memory>
#include <vector>

namespace gradientflow::transport {

// Frees `comm` now, or later, when a message with `tag` has come from each of `awaited`. Not collective.
void retire(MPI_Comm comm, std::vector<int> awaited, int tag) noexcept;

// Keeps `memory` until `request`, which uses it, has ended, even if its communicator is freed before. In some MPI
// libraries, a request that is never completed also keeps its communicator, although that was freed.
void finish_later(std::shared_ptr<const void> memory, MPI_Request request) noexcept;

// Frees what can be freed by now. MPI must not have been finalized.
void free_retired() noexcept;

}  // namespace gradientflow::transport

// The MPI library, as far as it is used here: its errors as exceptions, failed processes, threads.
#pragma once

#include <mpi.h>

#include <string>
#include <string_view>
#include <vector>

namespace gradientflow::transport {

// Throws unless `code` is MPI_SUCCESS: Error(mpi) with the library's own text and the rank, Error(mismatch) where a
// message was longer than its receive. Where processes of `comm` have failed, Error(peer) that names them, if the
// library tells which.
void check_mpi(int code, std::string_view what, MPI_Comm comm = MPI_COMM_NULL);
void check_mpi(int code, std::string_view what, const std::vector<int>& failed);

// Whether `code` says that a process has failed.
[[nodiscard]] bool is_process_failure(int code);

// The ranks of `comm` whose processes have failed, as far as the library tells. Where it does, it refuses receives from
// any rank until the failures have been acknowledged.
[[nodiscard]] std::vector<int> failed_ranks(MPI_Comm comm);
void acknowledge_failures(MPI_Comm comm) noexcept;

// Whether the others go on when a process fails, and may exchange messages on the same communicators: whether this is a
// library with ULFM, and a job that was started with it.
[[nodiscard]] bool can_outlive_processes();

// The tags of a communicator: from 0 on, so many.
[[nodiscard]] int tags_of(MPI_Comm comm);

// The library's own name and version, one line.
[[nodiscard]] std::string library_version();

[[nodiscard]] bool mpi_initialised() noexcept;
[[nodiscard]] bool mpi_finalized() noexcept;

// In MPI_COMM_WORLD.
[[nodiscard]] int world_rank();

// Whether several threads may call MPI at once (MPI_THREAD_MULTIPLE); and the end of an error about a call that needs
// it: which thread level there is, and what to do.
[[nodiscard]] bool mpi_thread_multiple();
[[nodiscard]] const char* thread_level_advice();

}  // namespace gradientflow::transport

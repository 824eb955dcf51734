// The MPI library, as far as it is used here: its errors as exceptions, failed processes, threads.
#pragma once

#include <mpi.h>

#include <string>
#include <string_view>
#include <vector>

namespace gradientflow::transport {

// Throws unless `code` is MPI_SUCCESS: Error(mpi) with the library's own text and the rank, or Error(mismatch) if a
// message was longer than its receive. If processes of `comm` have failed, throws an Error(peer) that names them, as
// far as the library tells them.
void check_mpi(int code, std::string_view what, MPI_Comm comm = MPI_COMM_NULL);
void check_mpi(int code, std::string_view what, const std::vector<int>& failed);

// Reports whether `code` means that a process has failed.
[[nodiscard]] bool is_process_failure(int code);

// Returns the ranks of `comm` with failed processes, as far as the library tells. A library that tells them refuses
// receives from any rank until the failures have been acknowledged.
[[nodiscard]] std::vector<int> failed_ranks(MPI_Comm comm);
void acknowledge_failures(MPI_Comm comm) noexcept;

// Reports whether ranks survive the failure of a process, and may exchange messages on the same communicators. This
// needs a library with ULFM, and a job that was started with it.
[[nodiscard]] bool can_outlive_processes();

// Returns the number of tags of a communicator; they start at 0.
[[nodiscard]] int tags_of(MPI_Comm comm);

// Returns the library's own name and version, one line.
[[nodiscard]] std::string library_version();

[[nodiscard]] bool mpi_initialized() noexcept;
[[nodiscard]] bool mpi_finalized() noexcept;

// Returns the rank in MPI_COMM_WORLD.
[[nodiscard]] int world_rank();

// mpi_thread_multiple() reports whether several threads may call MPI at once (MPI_THREAD_MULTIPLE).
// thread_level_advice() returns the end of an error about a call that needs several threads: the present thread level,
// and the remedy.
[[nodiscard]] bool mpi_thread_multiple();
[[nodiscard]] const char* thread_level_advice();

}  // namespace gradientflow::transport

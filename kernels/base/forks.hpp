// Detection of forked processes. MPI, threads and locks cannot be used in them: their owners compare counts of forks.
#pragma once

namespace gradientflow {

// Returns the number of forks between the first process that counted and this process. The first call begins to count.
[[nodiscard]] int count_forks() noexcept;

}  // namespace gradientflow

// Detection of forked processes. MPI, threads and locks cannot be used in them: their owners compare counts of forks.
#pragma once

namespace gradientflow {

// Counts the forks since the first process that called it. The first call begins to count.
[[nodiscard]] int count_forks() noexcept;

}  // namespace gradientflow

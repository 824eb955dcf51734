// Forked processes: what cannot be used in them, such as MPI, threads and locks, compares counts.
#pragma once

namespace gradientflow {

// Number of forks between the first process that counts and this one. The first call begins to count.
[[nodiscard]] int count_forks() noexcept;

}  // namespace gradientflow

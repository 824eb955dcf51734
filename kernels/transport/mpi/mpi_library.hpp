// The MPI library for callers that do not know its header: communicators come as the address of a handle, as mpi4py
// gives it, and go as the number of a handle, as mpi4py takes it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "../endpoint.hpp"

namespace gradientflow::transport {

// The library's own name and version, one line.
[[nodiscard]] std::string mpi_library_version();

// If MPI is initialised, processes forked off this one from now on can make no endpoint of it. Making one has the same
// effect.
void watch_forks_of_mpi() noexcept;

// See launcher_mismatch.
[[nodiscard]] std::string launcher_mismatch_of(std::uintptr_t comm_address);

// An MpiEndpoint. Collective.
[[nodiscard]] std::unique_ptr<Endpoint> mpi_endpoint(std::uintptr_t comm_address, double timeout);

// The communicator of an MpiEndpoint; nothing for others.
[[nodiscard]] std::optional<std::uintptr_t> mpi_handle(const Endpoint& endpoint);

// The communicator of an MpiEndpoint that has not been used. The caller frees it.
[[nodiscard]] std::uintptr_t release_mpi_handle(std::unique_ptr<Endpoint> endpoint);

}  // namespace gradientflow::transport

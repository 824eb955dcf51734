// Endpoint of ranks that MPI has introduced to each other.
#pragma once

#include <memory>

#include "../../base/config.hpp"
#include "../endpoint.hpp"
#include "devices.hpp"
#include "until.hpp"

namespace gradientflow::transport {

// Returns `by_mpi`, an endpoint over MPI, or an endpoint of the same ranks over TCP, which keeps `by_mpi` for calls
// handed over to the MPI library. choose_transport() decides; but if hosts cannot connect to each other, MPI is used,
// and rank 0 reports this once. The endpoint's remark gives the reason. Collective, and the same on all ranks.
[[nodiscard]] std::unique_ptr<Endpoint> introduced(std::unique_ptr<Endpoint> by_mpi, const Config& config,
                                                   const Until::Check& check = {},
                                                   const std::string& classes = device_classes);

}  // namespace gradientflow::transport

// The endpoint of ranks that MPI has introduced to each other.
#pragma once

#include <memory>

#include "../../base/config.hpp"
#include "../endpoint.hpp"
#include "devices.hpp"
#include "until.hpp"

namespace gradientflow::transport {

// `by_mpi`, an endpoint over MPI, or one of the same ranks over TCP, which keeps it for calls that are handed over to
// the MPI library: as choose_transport() says; and over MPI where hosts cannot connect to each other, which rank 0 says
// once. The endpoint's remark says why. Collective, and the same on all ranks.
[[nodiscard]] std::unique_ptr<Endpoint> introduced(std::unique_ptr<Endpoint> by_mpi, const Config& config,
                                                   const Until::Check& check = {},
                                                   const std::string& classes = device_classes);

}  // namespace gradientflow::transport

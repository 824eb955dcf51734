// Collectives of the MPI library: for calls that cross nodes, and as `algorithm="mpi"` for comparison.
//
// Features that MPI lacks are added: more than 2^31 elements travel in rounds; 16-bit floats are reduced as float32 and
// rounded once; a mean is the divided sum; waiting yields the core and ends after the timeout.
#pragma once

#include "../../transport/mpi/mpi_endpoint.hpp"
#include "../call/call.hpp"

namespace gradientflow::collective {

void mpi_collective(const transport::MpiEndpoint& endpoint, const Call& call);

}  // namespace gradientflow::collective

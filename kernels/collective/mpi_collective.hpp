// The collectives of the MPI library: for calls that cross nodes, and as `algorithm="mpi"` for comparison.
//
// What MPI lacks is added around it: more than 2^31 elements go in rounds; 16-bit floats are reduced as float32 and
// rounded once; mean divides the sum; waiting is polite and ends after the timeout.
#pragma once

#include <vector>

#include "../transport/mpi.hpp"
#include "call.hpp"

namespace gradientflow::collective {

// The signatures of all ranks, by rank.
[[nodiscard]] std::vector<transport::Signature> allgather_over_mpi(const transport::MpiCommunicator& mpi,
                                                                   const transport::Signature& signature,
                                                                   double timeout);

void mpi_collective(const transport::MpiCommunicator& mpi, const Call& call, double timeout);

}  // namespace gradientflow::collective

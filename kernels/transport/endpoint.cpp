#include "endpoint.hpp"

namespace gradientflow::transport {

const char* name_of(TransportKind kind) { return kind == TransportKind::mpi ? "mpi" : "tcp"; }

void Endpoint::check_not_ended() const {
  if (has_ended()) {
    throw Error(ErrorKind::closed,
                std::string(kind() == TransportKind::mpi ? "MPI has been finalized" : "TCP has ended") + " on rank " +
                    std::to_string(rank_) + ", and the call needs it");
  }
}

}  // namespace gradientflow::transport

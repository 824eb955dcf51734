#include "endpoint.hpp"

namespace gradientflow::transport {

const char* name_of(TransportKind kind) { return kind == TransportKind::mpi ? "mpi" : "tcp"; }

std::unique_ptr<Endpoint> Endpoint::among(std::span<const int> /*ranks*/, Stage /*stage*/) const {
  throw Error(ErrorKind::internal, "an endpoint of this kind cannot lose ranks");
}

std::unique_ptr<Endpoint> Endpoint::widen(std::span<const std::string> /*addresses*/, int /*first*/) const {
  throw Error(ErrorKind::internal, "an endpoint of this kind cannot take in ranks");
}

Invitation Endpoint::invitation() const {
  throw Error(ErrorKind::internal, "an endpoint of this kind has no invitation");
}

void Endpoint::check_not_ended() const {
  if (has_ended()) {
    throw Error(ErrorKind::closed,
                std::string(kind() == TransportKind::mpi ? "MPI has been finalized" : "TCP has ended") + " on rank " +
                    std::to_string(rank_) + ", and the call needs it");
  }
}

void Endpoint::check_mpi_not_ended() const {
  if (by_mpi() != nullptr) {
    by_mpi()->check_not_ended();
  }
}

}  // namespace gradientflow::transport

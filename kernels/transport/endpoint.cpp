#include "endpoint.hpp"

#include <algorithm>

namespace gradientflow::transport {

const Transport& transport_named(std::string_view name) {
  const auto* const found = std::ranges::find(transports, name, &Transport::name);
  if (found == transports.end()) {
    throw Error(ErrorKind::value, "transport is mpi or tcp, not " + std::string(name));
  }
  return *found;
}

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
                std::string(transport().end_notice) + " on rank " + std::to_string(rank_) + ", and the call needs it");
  }
}

void Endpoint::check_mpi_not_ended() const {
  if (by_mpi() != nullptr) {
    by_mpi()->check_not_ended();
  }
}

}  // namespace gradientflow::transport

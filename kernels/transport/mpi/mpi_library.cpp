#include "mpi_library.hpp"

#include <array>

#include "../../base/forks.hpp"
#include "handle_bits.hpp"
#include "launcher.hpp"
#include "mpi_endpoint.hpp"

namespace gradientflow::transport {
namespace {

MPI_Comm comm_at(std::uintptr_t address) {
  return *reinterpret_cast<MPI_Comm*>(address);  // NOLINT(*-no-int-to-ptr): from mpi4py
}

}  // namespace

std::string mpi_library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string version(text.data(), static_cast<std::size_t>(length));
  return version.substr(0, version.find_first_of(",\n"));
}

void watch_forks_of_mpi() noexcept {
  if (mpi_initialised()) {
    static_cast<void>(count_forks());
  }
}

std::string launcher_mismatch_of(std::uintptr_t comm_address) { return launcher_mismatch(comm_at(comm_address)); }

std::unique_ptr<Endpoint> mpi_endpoint(std::uintptr_t comm_address, double timeout) {
  return std::make_unique<MpiEndpoint>(comm_at(comm_address), timeout);
}

std::optional<std::uintptr_t> mpi_handle(const Endpoint& endpoint) {
  const auto* const own = dynamic_cast<const MpiEndpoint*>(&endpoint);
  return own == nullptr ? std::nullopt : std::optional(static_cast<std::uintptr_t>(to_bits(own->get())));
}

std::uintptr_t release_mpi_handle(std::unique_ptr<Endpoint> endpoint) {
  return static_cast<std::uintptr_t>(to_bits(dynamic_cast<MpiEndpoint&>(*endpoint).release()));
}

}  // namespace gradientflow::transport

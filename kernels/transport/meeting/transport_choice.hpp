// Choice of the transport for ranks introduced by MPI: MPI inside one host, and where it has a network device that our
// own connections do not use; otherwise our own connections.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "../../base/config.hpp"
#include "../endpoint.hpp"
#include "devices.hpp"
#include "until.hpp"

namespace gradientflow::transport {

// Description of one rank.
struct Candidate {
  std::string asked;         // "auto", "mpi" or "tcp"
  std::size_t host_key = 0;  // see host_key()
  std::string host;          // name of the host
  std::string device;        // device that MPI may use and TCP cannot; empty without one
  std::string objection;     // reason for using MPI only; empty if there is none
  bool threads = true;       // several threads may call MPI at once: needed to keep MPI beside TCP
};

struct TransportChoice {
  bool is_tcp = false;
  bool is_asked_for = false;
  std::string why;

  [[nodiscard]] const Transport& transport() const { return is_tcp ? tcp_transport : mpi_transport; }
};

// Chooses the transport. Pure, so that all ranks choose alike. Throws Error(mismatch) if some ranks ask for MPI and
// some for TCP.
[[nodiscard]] TransportChoice choose_transport(const std::vector<Candidate>& ranks);

// Describes this process. Where the user has chosen interfaces for MPI, sets `config.interface` to these.
[[nodiscard]] Candidate candidate(Config& config, const Until& until, const std::string& classes = device_classes);

}  // namespace gradientflow::transport

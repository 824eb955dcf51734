// What moves the messages of ranks that MPI has introduced to each other: MPI inside one host, and where it has a
// network device that connections of our own do not use; else these.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "../../base/config.hpp"
#include "../endpoint.hpp"
#include "devices.hpp"
#include "until.hpp"

namespace gradientflow::transport {

// What a rank says of itself.
struct Candidate {
  std::string asked;         // "auto", "mpi" or "tcp"
  std::size_t host_key = 0;  // see host_key()
  std::string host;          // its name
  std::string device;        // one that MPI may use and TCP cannot; empty without one
  std::string objection;     // why it keeps to MPI; empty if it need not
  bool threads = true;       // whether several threads may call its MPI at once, which is kept beside TCP
};

struct TransportChoice {
  bool is_tcp = false;
  bool is_asked_for = false;
  std::string why;

  [[nodiscard]] const Transport& transport() const { return is_tcp ? tcp_transport : mpi_transport; }
};

// Pure, so that all ranks choose alike. Throws Error(mismatch) where some ask for MPI and some for TCP.
[[nodiscard]] TransportChoice choose_transport(const std::vector<Candidate>& ranks);

// This process. Where the user has chosen interfaces for MPI, `config.interface` becomes these.
[[nodiscard]] Candidate candidate(Config& config, const Until& until, const std::string& classes = device_classes);

}  // namespace gradientflow::transport

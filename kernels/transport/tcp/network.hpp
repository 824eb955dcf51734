// Connections of this process to all others of a job.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../endpoint.hpp"

namespace gradientflow::transport::tcp {

// Secret that a process shows to all others of its job; 256 random bits.
using Token = std::array<std::byte, 32>;

struct Options {
  std::string address;          // address at which other hosts reach this one: "10.0.0.2", "fe80::1%eth0"
  double timeout = 300.0;       // seconds that set-up calls may take
  double host_timeout = 3.0;    // seconds without an acknowledgment after which a host is gone
  std::string congestion = {};  // congestion control of connections; empty: the system's
  bool can_lose_ranks = true;   // the job survives when a rank dies
};

class Network {
 public:
  // Listens at a free port of the address. Throws Error(system).
  [[nodiscard]] static std::shared_ptr<Network> listen(const Options& options);

  // Returns the address at which this process listens: "10.0.0.2:41234", "[fe80::1]:41234".
  [[nodiscard]] virtual std::string address() const = 0;

  // Makes this the network of rank `rank` among the ranks that listen at `addresses`. Returns the endpoint of all these
  // ranks. Not collective: connections are made when messages are sent. Call it once.
  [[nodiscard]] virtual std::unique_ptr<Endpoint> join(int rank, std::vector<std::string> addresses,
                                                       const Token& token) = 0;

  // The same for a process that joins a running job. Returns the endpoint of the ranks `members`, this rank among them,
  // with group `id`. An empty address marks a rank without a process.
  [[nodiscard]] virtual std::unique_ptr<Endpoint> join(int rank, std::vector<std::string> addresses, const Token& token,
                                                       std::vector<int> members, std::uint64_t id) = 0;
  virtual ~Network() = default;
};

}  // namespace gradientflow::transport::tcp

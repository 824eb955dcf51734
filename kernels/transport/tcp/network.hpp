// The connections of this process to the other processes of a job.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../endpoint.hpp"

namespace gradientflow::transport::tcp {

// What a process shows to the others of its job; 256 random bits.
using Token = std::array<std::byte, 32>;

struct Options {
  std::string address;          // of this host, at which others reach it: "10.0.0.2", "fe80::1%eth0"
  double timeout = 300.0;       // seconds, of set-up calls
  double host_timeout = 3.0;    // seconds without an acknowledgement after which a host is gone
  std::string congestion = {};  // the congestion control of connections; empty: the system's
  bool can_lose_ranks = true;   // whether the job lives on when a rank dies
};

class Network {
 public:
  // Listens at a free port of the address. Throws Error(system).
  [[nodiscard]] static std::shared_ptr<Network> listen(const Options& options);

  // Where it listens: "10.0.0.2:41234", "[fe80::1]:41234".
  [[nodiscard]] virtual std::string address() const = 0;

  // Makes it the network of rank `rank` of the ranks that listen at `addresses`, and the endpoint of all of them.
  // Not collective: connections are made when messages are sent. Once.
  [[nodiscard]] virtual std::unique_ptr<Endpoint> join(int rank, std::vector<std::string> addresses,
                                                       const Token& token) = 0;

  // The same for a process that comes to a job that stands: the endpoint is that of the ranks `members`, this one among
  // them, whose group is `id`. An empty address: nobody is there.
  [[nodiscard]] virtual std::unique_ptr<Endpoint> join(int rank, std::vector<std::string> addresses, const Token& token,
                                                       std::vector<int> members, std::uint64_t id) = 0;
  virtual ~Network() = default;
};

}  // namespace gradientflow::transport::tcp

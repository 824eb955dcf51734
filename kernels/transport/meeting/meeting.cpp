#include "meeting.hpp"

#include <utility>

#include "../tcp/network.hpp"
#include "address.hpp"
#include "introduction.hpp"

namespace gradientflow::transport {

std::unique_ptr<Endpoint> meet(TextExchange& exchange, int rank, const Config& config, const std::string& near,
                               const Until::Check& check, bool can_lose_ranks) {
  const Until until(config.timeout, check);
  std::shared_ptr<tcp::Network> network;
  const auto listen = [&] {
    network = tcp::Network::listen({.address = choose_address(config.interface, near, until),
                                    .timeout = config.timeout,
                                    .host_timeout = config.host_timeout,
                                    .congestion = config.congestion == "auto" ? "" : config.congestion,
                                    .can_lose_ranks = can_lose_ranks});
    return network->address();
  };
  Introduction met = introduce(exchange, rank, listen, until);
  return network->join(rank, std::move(met.addresses), met.token);
}

}  // namespace gradientflow::transport

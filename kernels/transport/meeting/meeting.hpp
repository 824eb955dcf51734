// Meeting of the ranks of a job over TCP: each rank listens, and all ranks learn all addresses.
#pragma once

#include <memory>
#include <string>

#include "../../base/config.hpp"
#include "../endpoint.hpp"
#include "exchange.hpp"
#include "until.hpp"

namespace gradientflow::transport {

// Returns an endpoint of all ranks. `near`: as for choose_address. `check` is called several times a second, and may
// throw. `can_lose_ranks`: the job survives when a rank dies.
[[nodiscard]] std::unique_ptr<Endpoint> meet(TextExchange& exchange, int rank, const Config& config,
                                             const std::string& near, const Until::Check& check = {},
                                             bool can_lose_ranks = true);

}  // namespace gradientflow::transport

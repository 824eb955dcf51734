// What ranks must know of each other before they can exchange messages over TCP.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "../tcp/network.hpp"
#include "exchange.hpp"
#include "until.hpp"

namespace gradientflow::transport {

// What every rank knows afterwards.
struct Introduction {
  std::vector<std::string> addresses;  // by rank
  tcp::Token token{};                  // of rank 0
};

// Calls `listen`, which gives the address at which this rank listens, and exchanges the addresses. If it throws on a
// rank, all ranks get its error. Throws Error(mismatch) where ranks run different versions of the library, or cannot
// reach each other at these addresses.
[[nodiscard]] Introduction introduce(Exchange& exchange, int rank, const std::function<std::string()>& listen,
                                     const Until& until);

}  // namespace gradientflow::transport

// What ranks must know of each other before they can exchange messages over TCP.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "../../base/error.hpp"
#include "../tcp/network.hpp"
#include "exchange.hpp"
#include "until.hpp"

namespace gradientflow::transport {

// What every rank knows afterwards.
struct Introduction {
  std::vector<std::string> addresses;  // by rank
  tcp::Token token{};                  // of rank 0
};

// A rank that others cannot reach, of the kind of its error, or that cannot reach others. All ranks get it.
class Unreachable : public Error {
 public:
  using Error::Error;
};

// Throws Error(mismatch) where ranks run different versions of the library.
void check_versions(const std::vector<std::string>& versions);

// Calls `listen`, which gives the address at which this rank listens, and exchanges the addresses. Throws Unreachable
// where it throws on a rank, or ranks cannot reach each other at these addresses; Error(mismatch) as check_versions.
[[nodiscard]] Introduction introduce(Exchange& exchange, int rank, const std::function<std::string()>& listen,
                                     const Until& until);

}  // namespace gradientflow::transport

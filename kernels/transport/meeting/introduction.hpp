// Introduction of ranks to each other, before they can exchange messages over TCP.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "../../base/error.hpp"
#include "../tcp/network.hpp"
#include "exchange.hpp"
#include "until.hpp"

namespace gradientflow::transport {

// Result of introduce(), the same on every rank.
struct Introduction {
  std::vector<std::string> addresses;  // address of each rank
  tcp::Token token{};                  // token of rank 0
};

// Error on all ranks, because a rank cannot be reached, or cannot reach other ranks. It has the kind of that rank's
// error.
class Unreachable : public Error {
 public:
  using Error::Error;
};

// Throws Error(mismatch) where ranks run different versions of the library.
void check_versions(const std::vector<std::string>& versions);

// Calls `listen`, which returns this rank's address, and exchanges the addresses. Throws Unreachable if `listen` throws
// on a rank, or ranks cannot reach each other; Error(mismatch) as check_versions.
[[nodiscard]] Introduction introduce(TextExchange& exchange, int rank, const std::function<std::string()>& listen,
                                     const Until& until);

}  // namespace gradientflow::transport

// Check that all ranks make the same object, done before any other step.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "communicator.hpp"

namespace gradientflow::engine {

// Compares descriptions of up to 256 bytes from all ranks. Throws Error(mismatch), on all ranks, if two differ;
// `things` names the objects, in the plural. Collective.
void check_same_on_all_ranks(Communicator& communicator, const std::string& things, std::string description);

// Compares longer descriptions: pairs of name and value, in order. The error names the first rank that differs from
// rank 0, and its first different entry.
using Entries = std::vector<std::pair<std::string, std::string>>;
void check_same_on_all_ranks(Communicator& communicator, const std::string& things, const Entries& entries);

}  // namespace gradientflow::engine

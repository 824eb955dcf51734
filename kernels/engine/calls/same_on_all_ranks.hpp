// Checking, before anything else, that all ranks make the same object.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "communicator.hpp"

namespace gradientflow::engine {

// Every rank describes what it makes, in up to 256 bytes. Throws Error(mismatch), on all ranks, where two differ;
// `things` says in the plural what they are. Collective.
void check_same_on_all_ranks(Communicator& communicator, const std::string& things, std::string description);

// The same for longer descriptions: pairs of name and value, whose order counts. The error names the first rank that
// differs from rank 0, and the first entry in which it differs.
using Entries = std::vector<std::pair<std::string, std::string>>;
void check_same_on_all_ranks(Communicator& communicator, const std::string& things, const Entries& entries);

}  // namespace gradientflow::engine

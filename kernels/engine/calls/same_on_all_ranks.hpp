// Finding out, before anything else, that all ranks make the same thing.
#pragma once

#include <string>

#include "communicator.hpp"

namespace gradientflow::engine {

// Every rank describes what it makes, in up to 256 bytes. Throws Error(mismatch), on all ranks, where two differ;
// `things` says in the plural what they are. Collective.
void check_same_on_all_ranks(Communicator& communicator, const std::string& things, std::string description);

}  // namespace gradientflow::engine

// Access to the Python that has loaded this library.
#pragma once

#include <memory>

#include "../../engine/calls/communicator.hpp"

namespace gradientflow::mpiabi {

// Returns all ranks of the job, as gradientflow.init() finds them. Collective. Throws Error(value).
[[nodiscard]] std::shared_ptr<engine::Communicator> ranks_of_python();

}  // namespace gradientflow::mpiabi

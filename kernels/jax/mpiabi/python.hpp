// The Python that jaxlib has loaded this library into.
#pragma once

#include <memory>

#include "../../engine/calls/communicator.hpp"

namespace gradientflow::mpiabi {

// All ranks of the job, as gradientflow.init() finds them. Collective. Throws Error(value).
[[nodiscard]] std::shared_ptr<engine::Communicator> ranks_of_python();

}  // namespace gradientflow::mpiabi

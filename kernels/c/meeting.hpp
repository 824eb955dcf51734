// Meeting of the ranks of a program without MPI.
#pragma once

#include <memory>

#include "../base/config.hpp"
#include "../transport/endpoint.hpp"

namespace gradientflow::c {

// Meets all ranks, see gf_init_meet. Throws Error(value) if arguments or variables are wrong.
[[nodiscard]] std::unique_ptr<transport::Endpoint> endpoint_by_meeting(const char* meet, int rank, int size,
                                                                       const Config& config);

}  // namespace gradientflow::c

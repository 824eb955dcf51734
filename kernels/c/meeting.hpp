// How the ranks of a program without MPI meet.
#pragma once

#include <memory>

#include "../base/config.hpp"
#include "../transport/endpoint.hpp"

namespace gradientflow::c {

// As gf_init_meet says. Throws Error(value) where the arguments, or the variables, are wrong.
[[nodiscard]] std::unique_ptr<transport::Endpoint> endpoint_by_meeting(const char* meet, int rank, int size,
                                                                       const Config& config);

}  // namespace gradientflow::c

// Definitions of the opaque types of gradientflow.h.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>

#include "../engine/calls/communicator.hpp"
#include "../engine/calls/handle.hpp"
#include "../engine/calls/prepared_call.hpp"
#include "../engine/exchange/gradient_pool.hpp"
#include "../engine/exchange/sparse_pool.hpp"
#include "../engine/exchange/top_k_pool.hpp"
#include "../engine/server/parameter_server.hpp"
#include "../engine/update/optimizer.hpp"
#include "gradientflow.h"

struct gf_communicator {
  std::shared_ptr<gradientflow::engine::Communicator> engine;
};

struct gf_handle {
  std::shared_ptr<gradientflow::engine::Handle> engine;
  pid_t process;  // process that made the call
};

struct gf_request {
  gradientflow::engine::PreparedCall engine;
  pid_t process;  // process that prepared the call
};

struct gf_memory {
  std::shared_ptr<gradientflow::transport::Segment> segment;
  std::size_t bytes;
};

struct gf_pool {
  gradientflow::engine::GradientPool engine;
  gradientflow::compute::cuda::Stream stream = nullptr;  // stream of ready and wait
};

struct gf_sparse_pool {
  gradientflow::engine::SparsePool engine;
};

struct gf_top_k_pool {
  gradientflow::engine::TopKPool engine;
};

struct gf_optimizer {
  gradientflow::engine::Optimizer engine;
  std::optional<gradientflow::engine::Optimizer::Adam> adam = {};  // its `updates` counts the updates so far
};

struct gf_parameter_server {
  std::shared_ptr<gradientflow::engine::ParameterServer> engine;
};

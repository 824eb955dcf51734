// The core's collectives, on ordinary memory.
#pragma once

#include <cstddef>

#include "../../base/dtype.hpp"
#include "../../engine/calls/communicator.hpp"

namespace gradientflow::mpiabi {

void allreduce(engine::Communicator& ranks, const void* input, void* output, std::size_t count, DType dtype,
               ReduceOp op);
// `count`: elements of each rank's block.
void reduce_scatter(engine::Communicator& ranks, const void* input, void* output, std::size_t count, DType dtype,
                    ReduceOp op);
// `bytes`: size of one rank's block.
void allgather(engine::Communicator& ranks, const void* input, void* output, std::size_t bytes);
void alltoall(engine::Communicator& ranks, const void* input, void* output, std::size_t bytes);
void broadcast(engine::Communicator& ranks, void* data, std::size_t bytes, int root);
void barrier(engine::Communicator& ranks);

}  // namespace gradientflow::mpiabi

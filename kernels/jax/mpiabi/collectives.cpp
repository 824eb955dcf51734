#include "collectives.hpp"

#include "../../engine/calls/request.hpp"
#include "failure.hpp"
#include "job.hpp"

namespace gradientflow::mpiabi {
namespace {

using engine::Array;
using engine::Communicator;
using transport::CallKind;

Array array(const void* data, std::size_t count, DType dtype) {
  void* const memory = const_cast<void*>(data);  // NOLINT(*-const-cast): inputs are only read
  return {.data = static_cast<std::byte*>(memory), .count = count, .dtype = dtype};
}

void run(Communicator& ranks, const engine::Request& request) { ranks.run(make_call(ranks, request)); }

std::size_t of_all(const Communicator& ranks, std::size_t count) {
  return count * static_cast<std::size_t>(ranks.size());
}

}  // namespace

void allreduce(Communicator& ranks, const void* input, void* output, std::size_t count, DType dtype, ReduceOp op) {
  run(ranks, {.kind = CallKind::allreduce,
              .op = op,
              .input = array(input, count, dtype),
              .output = array(output, count, dtype)});
}

void reduce_scatter(Communicator& ranks, const void* input, void* output, std::size_t count, DType dtype, ReduceOp op) {
  run(ranks, {.kind = CallKind::reduce_scatter,
              .op = op,
              .input = array(input, of_all(ranks, count), dtype),
              .output = array(output, count, dtype)});
}

void allgather(Communicator& ranks, const void* input, void* output, std::size_t bytes) {
  run(ranks, {.kind = CallKind::allgather,
              .input = array(input, bytes, DType::uint8),
              .output = array(output, of_all(ranks, bytes), DType::uint8)});
}

void alltoall(Communicator& ranks, const void* input, void* output, std::size_t bytes) {
  const std::size_t all = of_all(ranks, bytes);
  run(ranks, {.kind = CallKind::alltoall,
              .input = array(input, all, DType::uint8),
              .output = array(output, all, DType::uint8)});
}

void broadcast(Communicator& ranks, void* data, std::size_t bytes, int root) {
  const Array whole = array(data, bytes, DType::uint8);
  run(ranks, {.kind = CallKind::broadcast, .root = root, .input = whole, .output = whole});
}

void barrier(Communicator& ranks) { run(ranks, {.kind = CallKind::barrier}); }

}  // namespace gradientflow::mpiabi

using namespace gradientflow::mpiabi;  // NOLINT(google-build-using-namespace): its C functions are below

MPIABI_FUNCTION MPIABI_Allgather(const void* input, int count, Type type, void* output, int /*output_count*/,
                                 Type /*output_type*/, const Group* group) {
  return guarded([&] { allgather(job().ranks(*group), input, output, count_of(count) * size_of(type)); });
}

MPIABI_FUNCTION MPIABI_Alltoall(const void* input, int count, Type type, void* output, int /*output_count*/,
                                Type /*output_type*/, const Group* group) {
  return guarded([&] { alltoall(job().ranks(*group), input, output, count_of(count) * size_of(type)); });
}

MPIABI_FUNCTION MPIABI_Bcast(void* data, int count, Type type, int root, const Group* group) {
  return guarded([&] { broadcast(job().ranks(*group), data, count_of(count) * size_of(type), root); });
}

MPIABI_FUNCTION MPIABI_Barrier(const Group* group) {
  return guarded([&] { barrier(job().ranks(*group)); });
}

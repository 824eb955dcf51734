// The collectives, each as a blocking, an asynchronous and a prepared call.
#include <unistd.h>

#include "../collective/call/partition.hpp"
#include "../engine/calls/communicator.hpp"
#include "arguments.hpp"
#include "objects.hpp"
#include "status.hpp"

namespace gradientflow::c {
namespace {

using transport::CallKind;

constexpr gf_op no_op = GF_SUM;
constexpr int no_root = 0;

gf_status run(gf_communicator* communicator, const Arguments& arguments) {
  return guarded([&] {
    engine::Communicator& engine = *given(communicator, "communicator").engine;
    engine.run(make_call(engine, arguments));
  });
}

gf_status start(gf_communicator* communicator, const Arguments& arguments, gf_handle** handle) {
  return guarded([&] {
    gf_handle*& result = result_of(handle, "handle");
    engine::Communicator& engine = *given(communicator, "communicator").engine;
    auto made = std::make_unique<gf_handle>(gf_handle{nullptr, getpid()});  // before the call is under way
    made->engine = engine.submit(make_call(engine, arguments), engine::Communicator::Release());
    result = made.release();
  });
}

gf_status prepare(gf_communicator* communicator, const Arguments& arguments, gf_request** request) {
  return guarded([&] {
    gf_request*& result = result_of(request, "request");
    const std::shared_ptr<engine::Communicator>& engine = given(communicator, "communicator").engine;
    result = new gf_request{{engine, make_call(*engine, arguments)}, getpid()};
  });
}

}  // namespace
}  // namespace gradientflow::c

using namespace gradientflow::c;  // NOLINT(google-build-using-namespace): the functions below are its outside

gf_status gf_allreduce(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                       gf_op op, const gf_call_options* options) {
  return run(communicator, {CallKind::allreduce, input, output, count, dtype, op, no_root, options});
}

gf_status gf_allreduce_async(gf_communicator* communicator, const void* input, void* output, size_t count,
                             gf_dtype dtype, gf_op op, const gf_call_options* options, gf_handle** handle) {
  return start(communicator, {CallKind::allreduce, input, output, count, dtype, op, no_root, options}, handle);
}

gf_status gf_allreduce_init(gf_communicator* communicator, const void* input, void* output, size_t count,
                            gf_dtype dtype, gf_op op, const gf_call_options* options, gf_request** request) {
  return prepare(communicator, {CallKind::allreduce, input, output, count, dtype, op, no_root, options}, request);
}

gf_status gf_reduce(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                    gf_op op, int root, const gf_call_options* options) {
  return run(communicator, {CallKind::reduce, input, output, count, dtype, op, root, options});
}

gf_status gf_reduce_async(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                          gf_op op, int root, const gf_call_options* options, gf_handle** handle) {
  return start(communicator, {CallKind::reduce, input, output, count, dtype, op, root, options}, handle);
}

gf_status gf_reduce_init(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                         gf_op op, int root, const gf_call_options* options, gf_request** request) {
  return prepare(communicator, {CallKind::reduce, input, output, count, dtype, op, root, options}, request);
}

gf_status gf_broadcast(gf_communicator* communicator, void* data, size_t count, gf_dtype dtype, int root,
                       const gf_call_options* options) {
  return run(communicator, {CallKind::broadcast, data, data, count, dtype, no_op, root, options});
}

gf_status gf_broadcast_async(gf_communicator* communicator, void* data, size_t count, gf_dtype dtype, int root,
                             const gf_call_options* options, gf_handle** handle) {
  return start(communicator, {CallKind::broadcast, data, data, count, dtype, no_op, root, options}, handle);
}

gf_status gf_broadcast_init(gf_communicator* communicator, void* data, size_t count, gf_dtype dtype, int root,
                            const gf_call_options* options, gf_request** request) {
  return prepare(communicator, {CallKind::broadcast, data, data, count, dtype, no_op, root, options}, request);
}

gf_status gf_allgather(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                       const gf_call_options* options) {
  return run(communicator, {CallKind::allgather, input, output, count, dtype, no_op, no_root, options});
}

gf_status gf_allgather_async(gf_communicator* communicator, const void* input, void* output, size_t count,
                             gf_dtype dtype, const gf_call_options* options, gf_handle** handle) {
  return start(communicator, {CallKind::allgather, input, output, count, dtype, no_op, no_root, options}, handle);
}

gf_status gf_allgather_init(gf_communicator* communicator, const void* input, void* output, size_t count,
                            gf_dtype dtype, const gf_call_options* options, gf_request** request) {
  return prepare(communicator, {CallKind::allgather, input, output, count, dtype, no_op, no_root, options}, request);
}

gf_status gf_allgatherv(gf_communicator* communicator, const void* input, void* output, const size_t* counts,
                        gf_dtype dtype, const gf_call_options* options) {
  return run(communicator, {CallKind::allgatherv, input, output, 0, dtype, no_op, no_root, options, counts});
}

gf_status gf_allgatherv_async(gf_communicator* communicator, const void* input, void* output, const size_t* counts,
                              gf_dtype dtype, const gf_call_options* options, gf_handle** handle) {
  return start(communicator, {CallKind::allgatherv, input, output, 0, dtype, no_op, no_root, options, counts}, handle);
}

gf_status gf_allgatherv_init(gf_communicator* communicator, const void* input, void* output, const size_t* counts,
                             gf_dtype dtype, const gf_call_options* options, gf_request** request) {
  return prepare(communicator, {CallKind::allgatherv, input, output, 0, dtype, no_op, no_root, options, counts},
                 request);
}

gf_status gf_reduce_scatter(gf_communicator* communicator, const void* input, void* output, size_t count,
                            gf_dtype dtype, gf_op op, const gf_call_options* options) {
  return run(communicator, {CallKind::reduce_scatter, input, output, count, dtype, op, no_root, options});
}

gf_status gf_reduce_scatter_async(gf_communicator* communicator, const void* input, void* output, size_t count,
                                  gf_dtype dtype, gf_op op, const gf_call_options* options, gf_handle** handle) {
  return start(communicator, {CallKind::reduce_scatter, input, output, count, dtype, op, no_root, options}, handle);
}

gf_status gf_reduce_scatter_init(gf_communicator* communicator, const void* input, void* output, size_t count,
                                 gf_dtype dtype, gf_op op, const gf_call_options* options, gf_request** request) {
  return prepare(communicator, {CallKind::reduce_scatter, input, output, count, dtype, op, no_root, options}, request);
}

gf_status gf_alltoall(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                      const gf_call_options* options) {
  return run(communicator, {CallKind::alltoall, input, output, count, dtype, no_op, no_root, options});
}

gf_status gf_alltoall_async(gf_communicator* communicator, const void* input, void* output, size_t count,
                            gf_dtype dtype, const gf_call_options* options, gf_handle** handle) {
  return start(communicator, {CallKind::alltoall, input, output, count, dtype, no_op, no_root, options}, handle);
}

gf_status gf_alltoall_init(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                           const gf_call_options* options, gf_request** request) {
  return prepare(communicator, {CallKind::alltoall, input, output, count, dtype, no_op, no_root, options}, request);
}

gf_status gf_gather(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                    int root, const gf_call_options* options) {
  return run(communicator, {CallKind::gather, input, output, count, dtype, no_op, root, options});
}

gf_status gf_gather_async(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                          int root, const gf_call_options* options, gf_handle** handle) {
  return start(communicator, {CallKind::gather, input, output, count, dtype, no_op, root, options}, handle);
}

gf_status gf_gather_init(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                         int root, const gf_call_options* options, gf_request** request) {
  return prepare(communicator, {CallKind::gather, input, output, count, dtype, no_op, root, options}, request);
}

gf_status gf_scatter(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                     int root, const gf_call_options* options) {
  return run(communicator, {CallKind::scatter, input, output, count, dtype, no_op, root, options});
}

gf_status gf_scatter_async(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                           int root, const gf_call_options* options, gf_handle** handle) {
  return start(communicator, {CallKind::scatter, input, output, count, dtype, no_op, root, options}, handle);
}

gf_status gf_scatter_init(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                          int root, const gf_call_options* options, gf_request** request) {
  return prepare(communicator, {CallKind::scatter, input, output, count, dtype, no_op, root, options}, request);
}

gf_status gf_barrier(gf_communicator* communicator) { return run(communicator, {CallKind::barrier}); }

gf_status gf_barrier_async(gf_communicator* communicator, gf_handle** handle) {
  return start(communicator, {CallKind::barrier}, handle);
}

gf_status gf_barrier_init(gf_communicator* communicator, gf_request** request) {
  return prepare(communicator, {CallKind::barrier}, request);
}

size_t gf_reduce_scatter_count(const gf_communicator* communicator, size_t count) {
  size_t mine = 0;
  quietly([&] {
    const gradientflow::engine::Communicator& engine = *given(communicator, "communicator").engine;
    const auto ranks = static_cast<size_t>(engine.size());
    mine = gradientflow::collective::block(count, ranks, static_cast<size_t>(engine.rank())).size();
  });
  return mine;
}

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
    auto made = std::make_unique<gf_handle>(gf_handle{nullptr, getpid()});  // made before the call is under way
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

using namespace gradientflow::c;  // NOLINT(google-build-using-namespace): its C functions are below

// Defines a collective in its three forms; `...` are the fields of its Arguments.
#define ARGUMENTS(...) , __VA_ARGS__
#define COLLECTIVE(name, parameters, ...)                                                                    \
  gf_status gf_##name(gf_communicator* communicator parameters) { return run(communicator, {__VA_ARGS__}); } \
  gf_status gf_##name##_async(gf_communicator* communicator parameters, gf_handle** handle) {                \
    return start(communicator, {__VA_ARGS__}, handle);                                                       \
  }                                                                                                          \
  gf_status gf_##name##_init(gf_communicator* communicator parameters, gf_request** request) {               \
    return prepare(communicator, {__VA_ARGS__}, request);                                                    \
  }

COLLECTIVE(allreduce,
           ARGUMENTS(const void* input, void* output, size_t count, gf_dtype dtype, gf_op op,
                     const gf_call_options* options),
           CallKind::allreduce, input, output, count, dtype, op, no_root, options)
COLLECTIVE(reduce,
           ARGUMENTS(const void* input, void* output, size_t count, gf_dtype dtype, gf_op op, int root,
                     const gf_call_options* options),
           CallKind::reduce, input, output, count, dtype, op, root, options)
COLLECTIVE(broadcast, ARGUMENTS(void* data, size_t count, gf_dtype dtype, int root, const gf_call_options* options),
           CallKind::broadcast, data, data, count, dtype, no_op, root, options)
COLLECTIVE(allgather,
           ARGUMENTS(const void* input, void* output, size_t count, gf_dtype dtype, const gf_call_options* options),
           CallKind::allgather, input, output, count, dtype, no_op, no_root, options)
COLLECTIVE(allgatherv,
           ARGUMENTS(const void* input, void* output, const size_t* counts, gf_dtype dtype,
                     const gf_call_options* options),
           CallKind::allgatherv, input, output, 0, dtype, no_op, no_root, options, counts)
COLLECTIVE(reduce_scatter,
           ARGUMENTS(const void* input, void* output, size_t count, gf_dtype dtype, gf_op op,
                     const gf_call_options* options),
           CallKind::reduce_scatter, input, output, count, dtype, op, no_root, options)
COLLECTIVE(alltoall,
           ARGUMENTS(const void* input, void* output, size_t count, gf_dtype dtype, const gf_call_options* options),
           CallKind::alltoall, input, output, count, dtype, no_op, no_root, options)
COLLECTIVE(gather,
           ARGUMENTS(const void* input, void* output, size_t count, gf_dtype dtype, int root,
                     const gf_call_options* options),
           CallKind::gather, input, output, count, dtype, no_op, root, options)
COLLECTIVE(scatter,
           ARGUMENTS(const void* input, void* output, size_t count, gf_dtype dtype, int root,
                     const gf_call_options* options),
           CallKind::scatter, input, output, count, dtype, no_op, root, options)
COLLECTIVE(barrier, , CallKind::barrier)
#undef COLLECTIVE
#undef ARGUMENTS

size_t gf_reduce_scatter_count(const gf_communicator* communicator, size_t count) {
  size_t mine = 0;
  quietly([&] {
    const gradientflow::engine::Communicator& engine = *given(communicator, "communicator").engine;
    const auto ranks = static_cast<size_t>(engine.size());
    mine = gradientflow::collective::block(count, ranks, static_cast<size_t>(engine.rank())).size();
  });
  return mine;
}

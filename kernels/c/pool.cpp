// The gradient pool for C.
#include "pools.hpp"

using namespace gradientflow::c;  // NOLINT(google-build-using-namespace): its C functions are below

gf_status gf_pool_create(gf_communicator* communicator, const size_t* counts, size_t tensors, gf_dtype dtype,
                         const gf_pool_options* options, gf_pool** pool) {
  return create_pool(communicator, counts, tensors, int{dtype}, options, make_pool_options, pool);
}

void* gf_pool_tensor(const gf_pool* pool, size_t tensor) { return tensor_of(pool, tensor); }

size_t gf_pool_tensors(const gf_pool* pool) { return tensors_of(pool); }

size_t gf_pool_bytes(const gf_pool* pool) { return bytes_of(pool); }

gf_status gf_pool_set_stream(gf_pool* pool, void* stream) {
  return guarded([&] { given(pool, "pool").stream = stream; });
}

gf_status gf_pool_ready(gf_pool* pool, size_t tensor) {
  return guarded([&] { given(pool, "pool").engine.ready(tensor, pool->stream); });
}

gf_status gf_pool_ready_all(gf_pool* pool) {
  return guarded([&] { given(pool, "pool").engine.ready_all(pool->stream); });
}

gf_status gf_pool_wait(gf_pool* pool, double timeout) {
  return guarded([&] { given(pool, "pool").engine.wait(seconds_of(timeout), pool->stream); });
}

gf_status gf_pool_rollback(gf_pool* pool) {
  return guarded([&] { given(pool, "pool").engine.rollback(pool->stream); });
}

gf_status gf_pool_nonfinite(const gf_pool* pool, int64_t* count) {
  return guarded([&] {
    int64_t& result = given(count, "count");
    result = -1;
    result = static_cast<int64_t>(given(pool, "pool").engine.count_nonfinite(pool->stream));
  });
}

void gf_pool_free(gf_pool* pool) { delete pool; }

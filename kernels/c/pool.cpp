// The gradient pool.
#include <optional>

#include "../engine/exchange/gradient_pool.hpp"
#include "arguments.hpp"
#include "objects.hpp"
#include "status.hpp"

using namespace gradientflow::c;  // NOLINT(google-build-using-namespace): the functions below are its outside
using gradientflow::engine::GradientPool;

gf_status gf_pool_create(gf_communicator* communicator, const size_t* counts, size_t tensors, gf_dtype dtype,
                         const gf_pool_options* options, gf_pool** pool) {
  return guarded([&, number = int{dtype}] {
    gf_pool*& result = result_of(pool, "pool");
    const gf_communicator& owner = given(communicator, "communicator");
    const gradientflow::DType type = dtype_of(number);
    const auto of_each = tensor_counts(counts, tensors, size_of(type));
    result = new gf_pool{GradientPool(*owner.engine, of_each, type, make_pool_options(options)), nullptr};
  });
}

void* gf_pool_tensor(const gf_pool* pool, size_t tensor) {
  return tensor < gf_pool_tensors(pool) ? pool->engine.data() + pool->engine.offset(tensor) : nullptr;
}

size_t gf_pool_tensors(const gf_pool* pool) { return pool == nullptr ? 0 : pool->engine.tensors(); }

size_t gf_pool_bytes(const gf_pool* pool) { return pool == nullptr ? 0 : pool->engine.bytes(); }

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
  return guarded(
      [&] { given(pool, "pool").engine.wait(timeout < 0 ? std::nullopt : std::optional(timeout), pool->stream); });
}

gf_status gf_pool_abandon(gf_pool* pool) {
  return guarded([&] { given(pool, "pool").engine.abandon(pool->stream); });
}

gf_status gf_pool_nonfinite(const gf_pool* pool, int64_t* count) {
  return guarded([&] {
    int64_t& result = given(count, "count");
    result = -1;
    result = static_cast<int64_t>(given(pool, "pool").engine.count_nonfinite(pool->stream));
  });
}

void gf_pool_free(gf_pool* pool) { delete pool; }

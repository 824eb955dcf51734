// The sparse gradient pool for C.
#include <algorithm>
#include <vector>

#include "pools.hpp"

using namespace gradientflow::c;  // NOLINT(google-build-using-namespace): its C functions are below

gf_status gf_sparse_pool_create(gf_communicator* communicator, const size_t* counts, size_t tensors, gf_dtype dtype,
                                const gf_sparse_pool_options* options, gf_sparse_pool** pool) {
  return create_pool(communicator, counts, tensors, int{dtype}, options, make_sparse_pool_options, pool);
}

void* gf_sparse_pool_tensor(const gf_sparse_pool* pool, size_t tensor) { return tensor_of(pool, tensor); }

size_t gf_sparse_pool_tensors(const gf_sparse_pool* pool) { return tensors_of(pool); }

size_t gf_sparse_pool_bytes(const gf_sparse_pool* pool) { return bytes_of(pool); }

size_t gf_sparse_pool_chunks(const gf_sparse_pool* pool) { return pool == nullptr ? 0 : pool->engine.chunks(); }

double* gf_sparse_pool_extra(gf_sparse_pool* pool) { return extra_of(pool); }

gf_status gf_sparse_pool_ready(gf_sparse_pool* pool, size_t tensor) {
  return guarded([&] { given(pool, "pool").engine.ready(tensor); });
}

gf_status gf_sparse_pool_ready_all(gf_sparse_pool* pool) {
  return guarded([&] { given(pool, "pool").engine.ready_all(); });
}

gf_status gf_sparse_pool_wait(gf_sparse_pool* pool, double density, double timeout) {
  return guarded([&] { given(pool, "pool").engine.wait(seconds_of(timeout), density); });
}

gf_status gf_sparse_pool_rollback(gf_sparse_pool* pool) {
  return guarded([&] { given(pool, "pool").engine.rollback(); });
}

gf_status gf_sparse_pool_zero(gf_sparse_pool* pool) {
  return guarded([&] { given(pool, "pool").engine.zero(); });
}

gf_status gf_sparse_pool_set_loss_scale(gf_sparse_pool* pool, double scale) {
  return guarded([&] { given(pool, "pool").engine.set_loss_scale(scale); });
}

int gf_sparse_pool_overflowed(const gf_sparse_pool* pool) { return overflowed(pool); }

gf_status gf_sparse_pool_important(const gf_sparse_pool* pool, uint8_t* important) {
  return guarded([&] {
    const auto chunks = given(pool, "pool").engine.important();
    if (!chunks.empty()) {
      std::copy(chunks.begin(), chunks.end(), &given(important, "important"));
    }
  });
}

gf_status gf_sparse_pool_residuals(const gf_sparse_pool* pool, float* residuals) {
  return guarded([&] {
    const auto& engine = given(pool, "pool").engine;
    engine.copy_residuals(numbers_of(engine, residuals, "residuals"));
  });
}

gf_status gf_sparse_pool_restore(gf_sparse_pool* pool, const float* residuals, const uint8_t* important) {
  return guarded([&] {
    auto& engine = given(pool, "pool").engine;
    const auto numbers = numbers_of(engine, residuals, "residuals");
    std::vector<uint8_t> chunks;
    if (important != nullptr) {
      chunks.assign(important, important + engine.chunks());
    }
    engine.restore(numbers, chunks, engine.iteration());
  });
}

void gf_sparse_pool_free(gf_sparse_pool* pool) { delete pool; }

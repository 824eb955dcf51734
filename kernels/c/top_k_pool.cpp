// The top-k gradient pool for C.
#include "pools.hpp"

using namespace gradientflow::c;  // NOLINT(google-build-using-namespace): its C functions are below

gf_status gf_top_k_pool_create(gf_communicator* communicator, const size_t* counts, size_t tensors, gf_dtype dtype,
                               const gf_top_k_pool_options* options, gf_top_k_pool** pool) {
  return create_pool(communicator, counts, tensors, int{dtype}, options, make_top_k_pool_options, pool);
}

void* gf_top_k_pool_tensor(const gf_top_k_pool* pool, size_t tensor) { return tensor_of(pool, tensor); }

size_t gf_top_k_pool_tensors(const gf_top_k_pool* pool) { return tensors_of(pool); }

size_t gf_top_k_pool_layers(const gf_top_k_pool* pool) { return pool == nullptr ? 0 : pool->engine.layers(); }

size_t gf_top_k_pool_bytes(const gf_top_k_pool* pool) { return bytes_of(pool); }

double* gf_top_k_pool_extra(gf_top_k_pool* pool) { return extra_of(pool); }

gf_status gf_top_k_pool_ready(gf_top_k_pool* pool, size_t tensor) {
  return guarded([&] { given(pool, "pool").engine.ready(tensor); });
}

gf_status gf_top_k_pool_ready_all(gf_top_k_pool* pool) {
  return guarded([&] { given(pool, "pool").engine.ready_all(); });
}

gf_status gf_top_k_pool_wait(gf_top_k_pool* pool, double timeout) {
  return guarded([&] { given(pool, "pool").engine.wait(seconds_of(timeout)); });
}

gf_status gf_top_k_pool_rollback(gf_top_k_pool* pool) {
  return guarded([&] { given(pool, "pool").engine.rollback(); });
}

gf_status gf_top_k_pool_zero(gf_top_k_pool* pool) {
  return guarded([&] { given(pool, "pool").engine.zero(); });
}

gf_status gf_top_k_pool_set_ratios(gf_top_k_pool* pool, const double* ratios, size_t number) {
  return guarded([&] {
    auto& engine = given(pool, "pool").engine;
    engine.set_ratios({number > 0 ? &given(ratios, "ratios") : nullptr, number});
  });
}

gf_status gf_top_k_pool_set_loss_scale(gf_top_k_pool* pool, double scale) {
  return guarded([&] { given(pool, "pool").engine.set_loss_scale(scale); });
}

int gf_top_k_pool_overflowed(const gf_top_k_pool* pool) { return overflowed(pool); }

gf_status gf_top_k_pool_residuals(const gf_top_k_pool* pool, float* residuals) {
  return guarded([&] {
    const auto& engine = given(pool, "pool").engine;
    engine.copy_residuals(numbers_of(engine, residuals, "residuals"));
  });
}

gf_status gf_top_k_pool_velocities(const gf_top_k_pool* pool, float* velocities) {
  return guarded([&] {
    const auto& engine = given(pool, "pool").engine;
    engine.copy_velocities(numbers_of(engine, velocities, "velocities"));
  });
}

gf_status gf_top_k_pool_restore(gf_top_k_pool* pool, const float* residuals, const float* velocities) {
  return guarded([&] {
    auto& engine = given(pool, "pool").engine;
    gradientflow::engine::TopKPool::TopKCheckpoint state{.residual = numbers_of(engine, residuals, "residuals"),
                                                         .velocity = {},
                                                         .threshold = {},
                                                         .iteration = engine.iteration()};
    if (engine.has_velocities()) {
      state.velocity = numbers_of(engine, velocities, "velocities");
    }
    engine.restore(state);
  });
}

void gf_top_k_pool_free(gf_top_k_pool* pool) { delete pool; }

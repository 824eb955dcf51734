// The top-k gradient pool.
#include "../engine/exchange/top_k_pool.hpp"

#include <optional>
#include <span>

#include "arguments.hpp"
#include "objects.hpp"
#include "status.hpp"

using namespace gradientflow::c;  // NOLINT(google-build-using-namespace): the functions below are its outside
using gradientflow::engine::TopKPool;

namespace {

// One number per element of the pool; nullptr only if it has no elements.
std::span<const float> numbers(const TopKPool& pool, const float* data, const char* name) {
  return {pool.elements() > 0 ? &given(data, name) : nullptr, pool.elements()};
}

}  // namespace

gf_status gf_top_k_pool_create(gf_communicator* communicator, const size_t* counts, size_t tensors, gf_dtype dtype,
                               const gf_top_k_pool_options* options, gf_top_k_pool** pool) {
  return guarded([&, number = int{dtype}] {
    gf_top_k_pool*& result = result_of(pool, "pool");
    const gf_communicator& owner = given(communicator, "communicator");
    const gradientflow::DType type = dtype_of(number);
    const auto of_each = tensor_counts(counts, tensors, size_of(type));
    result = new gf_top_k_pool{TopKPool(*owner.engine, of_each, type, make_top_k_pool_options(options))};
  });
}

void* gf_top_k_pool_tensor(const gf_top_k_pool* pool, size_t tensor) {
  return tensor < gf_top_k_pool_tensors(pool) ? pool->engine.data() + pool->engine.offset(tensor) : nullptr;
}

size_t gf_top_k_pool_tensors(const gf_top_k_pool* pool) { return pool == nullptr ? 0 : pool->engine.tensors(); }

size_t gf_top_k_pool_layers(const gf_top_k_pool* pool) { return pool == nullptr ? 0 : pool->engine.layers(); }

size_t gf_top_k_pool_bytes(const gf_top_k_pool* pool) { return pool == nullptr ? 0 : pool->engine.bytes(); }

double* gf_top_k_pool_extra(gf_top_k_pool* pool) {
  return pool == nullptr || pool->engine.extra().empty() ? nullptr : pool->engine.extra().data();
}

gf_status gf_top_k_pool_ready(gf_top_k_pool* pool, size_t tensor) {
  return guarded([&] { given(pool, "pool").engine.ready(tensor); });
}

gf_status gf_top_k_pool_ready_all(gf_top_k_pool* pool) {
  return guarded([&] { given(pool, "pool").engine.ready_all(); });
}

gf_status gf_top_k_pool_wait(gf_top_k_pool* pool, double timeout) {
  return guarded([&] { given(pool, "pool").engine.wait(timeout < 0 ? std::nullopt : std::optional(timeout)); });
}

gf_status gf_top_k_pool_abandon(gf_top_k_pool* pool) {
  return guarded([&] { given(pool, "pool").engine.abandon(); });
}

gf_status gf_top_k_pool_take_back(gf_top_k_pool* pool) {
  return guarded([&] { given(pool, "pool").engine.take_back(); });
}

gf_status gf_top_k_pool_zero(gf_top_k_pool* pool) {
  return guarded([&] { given(pool, "pool").engine.zero(); });
}

gf_status gf_top_k_pool_set_ratios(gf_top_k_pool* pool, const double* ratios, size_t number) {
  return guarded([&] {
    TopKPool& engine = given(pool, "pool").engine;
    engine.set_ratios({number > 0 ? &given(ratios, "ratios") : nullptr, number});
  });
}

gf_status gf_top_k_pool_set_loss_scale(gf_top_k_pool* pool, double scale) {
  return guarded([&] { given(pool, "pool").engine.set_loss_scale(scale); });
}

int gf_top_k_pool_overflowed(const gf_top_k_pool* pool) {
  int overflowed = -1;
  quietly([&] { overflowed = given(pool, "pool").engine.overflowed() ? 1 : 0; });
  return overflowed;
}

gf_status gf_top_k_pool_residuals(const gf_top_k_pool* pool, float* residuals) {
  return guarded([&] {
    const TopKPool& engine = given(pool, "pool").engine;
    if (engine.elements() > 0) {
      engine.copy_residuals({&given(residuals, "residuals"), engine.elements()});
    }
  });
}

gf_status gf_top_k_pool_velocities(const gf_top_k_pool* pool, float* velocities) {
  return guarded([&] {
    const TopKPool& engine = given(pool, "pool").engine;
    if (engine.elements() > 0) {
      engine.copy_velocities({&given(velocities, "velocities"), engine.elements()});
    }
  });
}

gf_status gf_top_k_pool_restore(gf_top_k_pool* pool, const float* residuals, const float* velocities) {
  return guarded([&] {
    TopKPool& engine = given(pool, "pool").engine;
    TopKPool::State state{.residual = numbers(engine, residuals, "residuals"),
                          .velocity = {},
                          .threshold = {},
                          .iteration = engine.iteration()};
    if (engine.has_velocities()) {
      state.velocity = numbers(engine, velocities, "velocities");
    }
    engine.restore(state);
  });
}

void gf_top_k_pool_free(gf_top_k_pool* pool) { delete pool; }

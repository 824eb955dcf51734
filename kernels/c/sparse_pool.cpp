// The sparse gradient pool.
#include "../engine/exchange/sparse_pool.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "arguments.hpp"
#include "objects.hpp"
#include "status.hpp"

using namespace gradientflow::c;  // NOLINT(google-build-using-namespace): the functions below are its outside
using gradientflow::engine::SparsePool;

gf_status gf_sparse_pool_create(gf_communicator* communicator, const size_t* counts, size_t tensors, gf_dtype dtype,
                                const gf_sparse_pool_options* options, gf_sparse_pool** pool) {
  return guarded([&, number = int{dtype}] {
    gf_sparse_pool*& result = result_of(pool, "pool");
    const gf_communicator& owner = given(communicator, "communicator");
    const gradientflow::DType type = dtype_of(number);
    const auto of_each = tensor_counts(counts, tensors, size_of(type));
    result = new gf_sparse_pool{SparsePool(*owner.engine, of_each, type, make_sparse_pool_options(options))};
  });
}

void* gf_sparse_pool_tensor(const gf_sparse_pool* pool, size_t tensor) {
  return tensor < gf_sparse_pool_tensors(pool) ? pool->engine.data() + pool->engine.offset(tensor) : nullptr;
}

size_t gf_sparse_pool_tensors(const gf_sparse_pool* pool) { return pool == nullptr ? 0 : pool->engine.tensors(); }

size_t gf_sparse_pool_bytes(const gf_sparse_pool* pool) { return pool == nullptr ? 0 : pool->engine.bytes(); }

size_t gf_sparse_pool_chunks(const gf_sparse_pool* pool) { return pool == nullptr ? 0 : pool->engine.chunks(); }

double* gf_sparse_pool_extra(gf_sparse_pool* pool) {
  return pool == nullptr || pool->engine.extra().empty() ? nullptr : pool->engine.extra().data();
}

gf_status gf_sparse_pool_ready(gf_sparse_pool* pool, size_t tensor) {
  return guarded([&] { given(pool, "pool").engine.ready(tensor); });
}

gf_status gf_sparse_pool_ready_all(gf_sparse_pool* pool) {
  return guarded([&] { given(pool, "pool").engine.ready_all(); });
}

gf_status gf_sparse_pool_wait(gf_sparse_pool* pool, double density, double timeout) {
  return guarded(
      [&] { given(pool, "pool").engine.wait(timeout < 0 ? std::nullopt : std::optional(timeout), density); });
}

gf_status gf_sparse_pool_abandon(gf_sparse_pool* pool) {
  return guarded([&] { given(pool, "pool").engine.abandon(); });
}

gf_status gf_sparse_pool_zero(gf_sparse_pool* pool) {
  return guarded([&] { given(pool, "pool").engine.zero(); });
}

gf_status gf_sparse_pool_set_loss_scale(gf_sparse_pool* pool, double scale) {
  return guarded([&] { given(pool, "pool").engine.set_loss_scale(scale); });
}

int gf_sparse_pool_overflowed(const gf_sparse_pool* pool) {
  int overflowed = -1;
  quietly([&] { overflowed = given(pool, "pool").engine.overflowed() ? 1 : 0; });
  return overflowed;
}

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
    const SparsePool& engine = given(pool, "pool").engine;
    if (engine.elements() > 0) {
      engine.copy_residuals({&given(residuals, "residuals"), engine.elements()});
    }
  });
}

gf_status gf_sparse_pool_restore(gf_sparse_pool* pool, const float* residuals, const uint8_t* important) {
  return guarded([&] {
    SparsePool& engine = given(pool, "pool").engine;
    if (engine.elements() > 0) {
      given(residuals, "residuals");
    }
    std::vector<uint8_t> chunks;
    if (important != nullptr) {
      chunks.assign(important, important + engine.chunks());
    }
    engine.restore({residuals, engine.elements()}, chunks, engine.iteration());
  });
}

void gf_sparse_pool_free(gf_sparse_pool* pool) { delete pool; }

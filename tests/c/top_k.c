// The top-k gradient pool: against the algorithm in straight lines, and what may happen to it.
#include <math.h>

#include "expect.h"

enum { tensors = 3, elements = 48, most = 8, k_first = 5, k_last = 3 };

static const size_t counts[tensors] = {20, 0, 12};
static const size_t starts[tensors] = {0, 32, 32};  // at multiples of 64 bytes
static int rank, size;

// The gradient of a rank: a multiple of the number of ranks, so that means are exact.
static float gradient(int of_rank, int step, size_t element) {
  return (float)(size * ((int)(element * 7 + (size_t)(step * 5 + of_rank * 3)) % 11 - 5));
}

static void write_gradients(gf_top_k_pool* pool, int step, float scale) {
  for (size_t t = 0; t < tensors; ++t) {
    float* const tensor = gf_top_k_pool_tensor(pool, t);
    for (size_t i = 0; i < counts[t]; ++i) tensor[i] = scale * gradient(rank, step, starts[t] + i);
  }
}

// All ranks at once, in straight lines: velocities of momentum 0.5, masked where they are sent.
typedef struct reference {
  float residual[most][elements], velocity[most][elements];
  float used[elements], weights[elements];
} reference;

static void select_from(reference* r, int p, size_t begin, size_t count, int k) {
  int sent[elements] = {0};
  for (int n = 0; n < k; ++n) {
    size_t best = elements;
    for (size_t i = begin; i < begin + count; ++i) {
      const float x = fabsf(r->residual[p][i]);
      if (!sent[i] && x > 0 && (best == elements || x > fabsf(r->residual[p][best]))) best = i;
    }
    if (best == elements) break;
    sent[best] = 1;
  }
  for (size_t i = begin; i < begin + count; ++i) {
    if (!sent[i]) continue;
    r->used[i] += r->residual[p][i] / (float)size;
    r->residual[p][i] = r->velocity[p][i] = 0;
  }
}

static void iterate(reference* r, int step, float rate) {
  memset(r->used, 0, sizeof r->used);
  for (int p = 0; p < size; ++p) {
    for (size_t i = 0; i < elements; ++i) {
      if ((i >= 20 && i < 32) || i >= 44) continue;  // padding
      r->velocity[p][i] = 0.5F * r->velocity[p][i] + gradient(p, step, i);
      r->residual[p][i] += r->velocity[p][i];
    }
    select_from(r, p, 0, 20, k_first);
    select_from(r, p, 32, 12, k_last);
  }
  for (size_t i = 0; i < elements; ++i) r->weights[i] -= rate * r->used[i];
}

static void compare(const reference* r, const gf_top_k_pool* pool, float* const* weights) {
  float residual[elements], velocity[elements];
  OK(gf_top_k_pool_residuals(pool, residual));
  OK(gf_top_k_pool_velocities(pool, velocity));
  for (size_t i = 0; i < elements; ++i) {
    REQUIRE(residual[i] == r->residual[rank][i] && velocity[i] == r->velocity[rank][i]);
  }
  for (size_t t = 0; t < tensors; ++t) {
    const float* const tensor = gf_top_k_pool_tensor(pool, t);
    for (size_t i = 0; i < counts[t]; ++i) {
      REQUIRE(fabsf(tensor[i] - r->used[starts[t] + i]) < 1e-4F);
      REQUIRE(fabsf(weights[t][i] - r->weights[starts[t] + i]) < 1e-3F);
    }
  }
}

static gf_top_k_pool* make_pool(gf_communicator* communicator, int skip_nonfinite) {
  const size_t layers[] = {1, 2};
  gf_top_k_pool_options options = GF_TOP_K_POOL_OPTIONS_INIT;
  options.ratio = 4;
  options.layers = layers;
  options.layer_count = 2;
  options.selection = GF_SELECTION_EXACT;
  options.momentum = 0.5F;
  options.extra = 2;
  options.skip_nonfinite = skip_nonfinite;
  gf_top_k_pool* pool;
  OK(gf_top_k_pool_create(communicator, counts, tensors, GF_FLOAT32, &options, &pool));
  return pool;
}

static void as_in_straight_lines(gf_communicator* communicator) {
  float first[20], last[12];
  float* const weights[] = {first, NULL, last};
  gf_top_k_pool* const pool = make_pool(communicator, 0);
  gf_optimizer* optimizer;
  gf_step_settings settings = GF_STEP_SETTINGS_INIT;
  settings.rate = 0.25F;
  reference r;
  memset(&r, 0, sizeof r);
  for (size_t i = 0; i < elements; ++i) r.weights[i] = 1;
  OK(gf_optimizer_create(counts, tensors, 0, &optimizer));
  for (size_t t = 0; t < tensors; ++t) {
    for (size_t i = 0; i < counts[t]; ++i) weights[t][i] = 1;
    OK(gf_optimizer_set_parameter(optimizer, t, weights[t], GF_FLOAT32));
  }
  REQUIRE(gf_top_k_pool_tensors(pool) == tensors && gf_top_k_pool_layers(pool) == 2);
  REQUIRE(gf_top_k_pool_bytes(pool) == elements * sizeof(float) && gf_top_k_pool_tensor(pool, tensors) == NULL);
  float residual[elements], velocity[elements], after[elements];
  for (int step = 0; step < 6; ++step) {
    if (step == 3) {  // an iteration that is not to count
      OK(gf_top_k_pool_residuals(pool, residual));
      write_gradients(pool, 7, 1);
      OK(gf_top_k_pool_ready_all(pool));
      OK(gf_top_k_pool_wait(pool, -1));
      OK(gf_top_k_pool_rollback(pool));
      OK(gf_top_k_pool_residuals(pool, after));
      for (int i = 0; i < elements; ++i) REQUIRE(after[i] == residual[i]);
    }
    write_gradients(pool, step, 1);
    double* const extra = gf_top_k_pool_extra(pool);
    extra[0] = rank;
    extra[1] = step;
    OK(gf_top_k_pool_ready(pool, tensors));  // the extra numbers
    OK(gf_top_k_pool_ready(pool, (size_t)(step % 3)));
    OK(gf_top_k_pool_ready_all(pool));
    OK(gf_top_k_pool_wait(pool, step % 2 == 0 ? -1 : 60));
    OK(gf_optimizer_step_top_k(optimizer, pool, &settings, 1, 1));
    iterate(&r, step, settings.rate);
    compare(&r, pool, weights);
    REQUIRE(extra[0] == (size - 1) / 2.0 && extra[1] == step && gf_top_k_pool_overflowed(pool) == 0);
    OK(gf_top_k_pool_zero(pool));
    REQUIRE(((float*)gf_top_k_pool_tensor(pool, 0))[1] == 0);
  }
  gf_optimizer_free(optimizer);

  // What is saved, and loaded by another pool, goes on as it would have.
  gf_top_k_pool* const other = make_pool(communicator, 0);
  gf_top_k_pool* const both[] = {pool, other};
  OK(gf_top_k_pool_residuals(pool, residual));
  OK(gf_top_k_pool_velocities(pool, velocity));
  OK(gf_top_k_pool_restore(other, residual, velocity));
  for (int i = 0; i < 2; ++i) {
    write_gradients(both[i], 6, 1);
    OK(gf_top_k_pool_ready_all(both[i]));
    OK(gf_top_k_pool_wait(both[i], -1));
  }
  for (size_t i = 0; i < 20; ++i) {
    REQUIRE(((float*)gf_top_k_pool_tensor(pool, 0))[i] == ((float*)gf_top_k_pool_tensor(other, 0))[i]);
  }
  velocity[3] = NAN;
  REFUSED(gf_top_k_pool_restore(other, residual, velocity), GF_ERROR_VALUE, "not finite");
  REFUSED(gf_top_k_pool_restore(other, residual, NULL), GF_ERROR_VALUE, "velocities is NULL");
  OK(gf_top_k_pool_residuals(other, residual));
  OK(gf_top_k_pool_ready(other, 0));
  OK(gf_top_k_pool_rollback(other));
  OK(gf_top_k_pool_residuals(other, after));
  for (int i = 0; i < elements; ++i) REQUIRE(after[i] == residual[i]);
  gf_top_k_pool_free(other);
  gf_top_k_pool_free(pool);
}

static void settings_and_numbers_that_are_not_finite(gf_communicator* communicator) {
  const double ratios[] = {2, 3}, others[] = {2, 4}, wrong = 0.5;
  gf_top_k_pool* const pool = make_pool(communicator, 0);
  OK(gf_top_k_pool_set_ratios(pool, ratios, 2));
  REFUSED(gf_top_k_pool_set_ratios(pool, &wrong, 1), GF_ERROR_VALUE, "1 or more, not 0.5");
  REFUSED(gf_top_k_pool_set_ratios(pool, ratios, 0), GF_ERROR_VALUE, "2 layers, or one for all, not 0");
  REFUSED(gf_top_k_pool_set_ratios(pool, NULL, 2), GF_ERROR_VALUE, "ratios is NULL");
  REFUSED(gf_top_k_pool_set_loss_scale(pool, 3), GF_ERROR_VALUE, "power of two");
  OK(gf_top_k_pool_set_loss_scale(pool, 64));
  write_gradients(pool, 0, 64);
  float* const tensor = gf_top_k_pool_tensor(pool, 2);
  if (rank == size - 1) tensor[3] = NAN;
  OK(gf_top_k_pool_ready_all(pool));
  char where[100];
  snprintf(where, sizeof where, "the gradient of tensor 2 is not finite on rank %d", size - 1);
  REFUSED(gf_top_k_pool_wait(pool, -1), GF_ERROR_NONFINITE, where);
  REQUIRE(tensor[3] == 0 && gf_top_k_pool_overflowed(pool) == 1);
  if (size > 1) {
    OK(gf_top_k_pool_set_ratios(pool, rank == 0 ? ratios : others, 2));
    REFUSED(gf_top_k_pool_wait(pool, -1), GF_ERROR_MISMATCH, "ratio 4 of layer 1");
    OK(gf_top_k_pool_set_ratios(pool, ratios, 2));
  }
  REFUSED(gf_top_k_pool_wait(pool, -1), GF_ERROR_VALUE, "no rank made a tensor of the pool ready");
  OK(gf_top_k_pool_ready_all(pool));
  OK(gf_top_k_pool_wait(pool, -1));
  gf_top_k_pool_free(pool);
  gf_top_k_pool* const skipping = make_pool(communicator, 1);
  if (rank == 0) ((float*)gf_top_k_pool_tensor(skipping, 0))[0] = INFINITY;
  OK(gf_top_k_pool_ready_all(skipping));
  OK(gf_top_k_pool_wait(skipping, -1));
  REQUIRE(gf_top_k_pool_overflowed(skipping) == 1);
  gf_top_k_pool_free(skipping);
}

int main(void) {
  gf_communicator* communicator;
  OK(gf_init(MPI_COMM_WORLD, NULL, &communicator));
  rank = gf_rank(communicator);
  size = gf_size(communicator);
  REQUIRE(size <= most);
  as_in_straight_lines(communicator);
  settings_and_numbers_that_are_not_finite(communicator);
  OK(gf_close(communicator));
  gf_communicator_free(communicator);
  MPI_Finalize();
  return 0;
}

// The sparse gradient pool and the optimizers: against the algorithm in straight lines, and what may happen to them.
#include <math.h>

#include "expect.h"

enum { tensors = 3, chunk = 16, chunks = 3, elements = 44, most = 8 };  // the last chunk is a short one

static const size_t counts[tensors] = {20, 0, 12};
static const size_t starts[tensors] = {0, 32, 32};  // at multiples of 64 bytes
static int rank, size;

// The gradient of a rank: a multiple of the number of ranks, so that means are exact; 0 in the padding.
static float gradient(int of_rank, int step, size_t element) {
  if (element >= 20 && (element < 32 || element >= 44)) return 0;
  return (float)(size * ((int)(element * 7 + (size_t)(step * 5 + of_rank * 3)) % 11 - 5));
}

static void write_gradients(gf_sparse_pool* pool, int step, float scale) {
  for (size_t t = 0; t < tensors; ++t) {
    float* const tensor = gf_sparse_pool_tensor(pool, t);
    for (size_t i = 0; i < counts[t]; ++i) tensor[i] = scale * gradient(rank, step, starts[t] + i);
  }
}

// All ranks at once, in straight lines.
typedef struct reference {
  float residual[most][elements];
  float used[elements];
  float weights[elements], velocity[elements];
  int important[chunks];
} reference;

static void begin(reference* r) {
  memset(r, 0, sizeof *r);
  for (size_t i = 0; i < elements; ++i) r->weights[i] = 1;
  for (int c = 0; c < chunks; ++c) r->important[c] = 1;
}

static void iterate(reference* r, int step, float rate) {  // momentum 0.5, and one chunk of the three is sent next
  double norms[chunks] = {0};
  for (size_t i = 0; i < elements; ++i) {
    const size_t c = i / chunk;
    float sum = 0;
    double norm = 0;
    for (int p = 0; p < size; ++p) {
      const float x = gradient(p, step, i) + r->residual[p][i];
      sum += x;
      norm += fabs((double)x);
      r->residual[p][i] = r->important[c] ? 0 : 0.5F * x;
    }
    r->used[i] = r->important[c] ? sum / (float)size : 0;
    norms[c] += r->important[c] ? fabs((double)sum) : norm;
    if (r->important[c]) {
      r->velocity[i] = 0.5F * r->velocity[i] + rate * r->used[i];
      r->weights[i] -= r->velocity[i];
    }
  }
  int best = 0;
  for (int c = 1; c < chunks; ++c) best = norms[c] > norms[best] ? c : best;
  for (int c = 0; c < chunks; ++c) r->important[c] = c == best;
}

static void compare(const reference* r, gf_sparse_pool* pool, float* const* weights) {
  uint8_t important[chunks];
  float residual[elements];
  OK(gf_sparse_pool_important(pool, important));
  OK(gf_sparse_pool_residuals(pool, residual));
  for (int c = 0; c < chunks; ++c) REQUIRE(important[c] == r->important[c]);
  for (int i = 0; i < elements; ++i) REQUIRE(residual[i] == r->residual[rank][i]);
  for (size_t t = 0; t < tensors; ++t) {
    const float* const tensor = gf_sparse_pool_tensor(pool, t);
    for (size_t i = 0; i < counts[t]; ++i) {
      REQUIRE(tensor[i] == r->used[starts[t] + i]);
      REQUIRE(weights[t][i] == r->weights[starts[t] + i]);
    }
  }
}

static gf_sparse_pool* make_pool(gf_communicator* communicator, int skip_nonfinite) {
  gf_sparse_pool_options options = GF_SPARSE_POOL_OPTIONS_INIT;
  options.chunk_size = chunk;
  options.momentum = 0.5F;
  options.extra = 2;
  options.skip_nonfinite = skip_nonfinite;
  options.fusion_threshold = 0;
  gf_sparse_pool* pool;
  OK(gf_sparse_pool_create(communicator, counts, tensors, GF_FLOAT32, &options, &pool));
  return pool;
}

static gf_optimizer* make_optimizer(float* const* weights) {
  gf_optimizer* optimizer;
  OK(gf_optimizer_create(counts, tensors, 1, &optimizer));
  for (size_t t = 0; t < tensors; ++t) {
    for (size_t i = 0; i < counts[t]; ++i) weights[t][i] = 1;
    OK(gf_optimizer_set_parameter(optimizer, t, weights[t], GF_FLOAT32));
  }
  return optimizer;
}

static gf_step_settings settings_at(int step) {
  gf_step_settings settings = GF_STEP_SETTINGS_INIT;
  settings.rate = 1.0F / (float)(1 << step);
  settings.momentum = 0.5F;
  return settings;
}

static void as_in_straight_lines(gf_communicator* communicator) {
  float first[20], last[12];
  float* const weights[] = {first, NULL, last};
  gf_sparse_pool* const pool = make_pool(communicator, 0);
  gf_optimizer* const optimizer = make_optimizer(weights);
  reference r;
  begin(&r);
  REQUIRE(gf_sparse_pool_tensors(pool) == tensors && gf_sparse_pool_chunks(pool) == chunks);
  REQUIRE(gf_sparse_pool_bytes(pool) == elements * sizeof(float) && gf_sparse_pool_tensor(pool, tensors) == NULL);
  for (int step = 0; step < 6; ++step) {
    write_gradients(pool, step, 1);
    double* const extra = gf_sparse_pool_extra(pool);
    extra[0] = rank;
    extra[1] = step;
    OK(gf_sparse_pool_ready(pool, tensors));  // the extra numbers
    OK(gf_sparse_pool_ready(pool, (size_t)(step % 3)));
    OK(gf_sparse_pool_ready_all(pool));
    OK(gf_sparse_pool_wait(pool, 0.3, step % 2 == 0 ? -1 : 60));
    const gf_step_settings settings = settings_at(step);
    OK(gf_optimizer_step_sparse(optimizer, pool, &settings, 1, 1));
    iterate(&r, step, settings.rate);
    compare(&r, pool, weights);
    REQUIRE(extra[0] == (size - 1) / 2.0 && extra[1] == step && gf_sparse_pool_overflowed(pool) == 0);
    OK(gf_sparse_pool_zero(pool));
    REQUIRE(((float*)gf_sparse_pool_tensor(pool, 0))[1] == 0);
  }

  // What is saved, and loaded by another pool and optimizer, goes on as it would have.
  float copied_first[20], copied_last[12], residual[elements];
  float* const copies[] = {copied_first, NULL, copied_last};
  uint8_t important[chunks];
  gf_sparse_pool* const other = make_pool(communicator, 0);
  gf_optimizer* const resumed = make_optimizer(copies);
  OK(gf_sparse_pool_residuals(pool, residual));
  OK(gf_sparse_pool_important(pool, important));
  OK(gf_sparse_pool_restore(other, residual, important));
  for (size_t t = 0; t < tensors; ++t) {
    if (counts[t] == 0) continue;
    memcpy(copies[t], weights[t], counts[t] * sizeof(float));
    memcpy(gf_optimizer_momentum(resumed, t), gf_optimizer_momentum(optimizer, t), counts[t] * sizeof(float));
  }
  const gf_step_settings each[tensors] = {settings_at(6), settings_at(6), settings_at(6)};
  write_gradients(other, 6, 1);
  OK(gf_sparse_pool_ready_all(other));
  OK(gf_sparse_pool_wait(other, 0.3, -1));
  OK(gf_optimizer_step_sparse(resumed, other, each, tensors, 1));
  iterate(&r, 6, each[0].rate);
  compare(&r, other, copies);
  residual[3] = NAN;
  REFUSED(gf_sparse_pool_restore(other, residual, NULL), GF_ERROR_VALUE, "not finite");
  residual[3] = 0;
  OK(gf_sparse_pool_restore(other, residual, NULL));
  OK(gf_sparse_pool_important(other, important));
  REQUIRE(important[0] && important[1] && important[2]);

  // Rolled back on all ranks: the residuals are as before.
  float after[elements];
  OK(gf_sparse_pool_ready(other, 0));
  OK(gf_sparse_pool_rollback(other));
  OK(gf_sparse_pool_residuals(other, after));
  for (int i = 0; i < elements; ++i) REQUIRE(after[i] == residual[i]);
  gf_optimizer_free(resumed);
  gf_optimizer_free(optimizer);
  gf_sparse_pool_free(other);
  gf_sparse_pool_free(pool);
}

// A run whose gradients are scaled, with an iteration that overflows: as one without either.
static void loss_scale(gf_communicator* communicator) {
  float first[20], last[12];
  float* const weights[] = {first, NULL, last};
  gf_sparse_pool* const pool = make_pool(communicator, 1);
  gf_optimizer* const optimizer = make_optimizer(weights);
  reference r;
  begin(&r);
  OK(gf_sparse_pool_set_loss_scale(pool, 64));
  REFUSED(gf_sparse_pool_set_loss_scale(pool, 3), GF_ERROR_VALUE, "power of two");
  const gf_step_settings settings = settings_at(2);
  for (int step = 0; step < 4; ++step) {
    write_gradients(pool, step, 64);
    if (rank == size - 1) ((float*)gf_sparse_pool_tensor(pool, 2))[3] = INFINITY;
    OK(gf_sparse_pool_ready_all(pool));
    OK(gf_sparse_pool_wait(pool, 0.3, -1));
    REQUIRE(gf_sparse_pool_overflowed(pool) == 1);
    OK(gf_optimizer_step_sparse(optimizer, pool, &settings, 1, 1.0 / 64));
    write_gradients(pool, step, 64);
    OK(gf_sparse_pool_ready_all(pool));
    OK(gf_sparse_pool_wait(pool, 0.3, -1));
    REQUIRE(gf_sparse_pool_overflowed(pool) == 0);
    OK(gf_optimizer_step_sparse(optimizer, pool, &settings, 1, 1.0 / 64));
    iterate(&r, step, settings.rate);
    for (size_t t = 0; t < tensors; ++t) {
      for (size_t i = 0; i < counts[t]; ++i) REQUIRE(weights[t][i] == r.weights[starts[t] + i]);
    }
    OK(gf_sparse_pool_zero(pool));
  }
  gf_optimizer_free(optimizer);
  gf_sparse_pool_free(pool);
}

static void not_finite(gf_communicator* communicator) {
  gf_sparse_pool* const pool = make_pool(communicator, 0);
  float* const tensor = gf_sparse_pool_tensor(pool, 2);
  if (rank == size - 1) tensor[3] = NAN;
  OK(gf_sparse_pool_ready_all(pool));
  char where[100];
  snprintf(where, sizeof where, "the gradient of tensor 2 is not finite on rank %d", size - 1);
  REFUSED(gf_sparse_pool_wait(pool, 1, -1), GF_ERROR_NONFINITE, where);
  REQUIRE(tensor[3] == 0 && gf_sparse_pool_overflowed(pool) == 1);
  if (size > 1) {
    REFUSED(gf_sparse_pool_wait(pool, rank == 0 ? 0.3 : 1, -1), GF_ERROR_MISMATCH, "different densities");
  }
  REFUSED(gf_sparse_pool_wait(pool, 1, -1), GF_ERROR_VALUE, "no rank made a tensor of the pool ready");
  OK(gf_sparse_pool_ready_all(pool));
  OK(gf_sparse_pool_wait(pool, 1, -1));
  gf_sparse_pool_free(pool);

  gf_pool* dense;
  int64_t count = 7;
  OK(gf_pool_create(communicator, counts, tensors, GF_FLOAT32, NULL, &dense));
  if (rank == 0) ((float*)gf_pool_tensor(dense, 0))[1] = -INFINITY;
  OK(gf_pool_ready_all(dense));
  OK(gf_pool_wait(dense, -1));
  OK(gf_pool_nonfinite(dense, &count));
  REQUIRE(count == 1);
  gf_pool_free(dense);
}

// Weights of 16 bits are what the float32 ones round to, and small steps are not lost.
static void master_weights(gf_communicator* communicator) {
  enum { steps = 8 };
  const uint16_t one = 0x3F80;  // bfloat16
  uint16_t weights[4] = {0x3F80, 0x3F80, 0x3F80, 0x3F80};
  const size_t count = 4;
  gf_pool* pool;
  gf_optimizer* optimizer;
  OK(gf_pool_create(communicator, &count, 1, GF_BFLOAT16, NULL, &pool));
  OK(gf_optimizer_create(&count, 1, 0, &optimizer));
  OK(gf_optimizer_set_parameter(optimizer, 0, weights, GF_BFLOAT16));
  gf_step_settings settings = GF_STEP_SETTINGS_INIT;
  settings.rate = 1.0F / 1024;
  for (int step = 1; step <= steps; ++step) {
    for (size_t i = 0; i < count; ++i) ((uint16_t*)gf_pool_tensor(pool, 0))[i] = one;
    OK(gf_pool_ready_all(pool));
    OK(gf_pool_wait(pool, -1));
    OK(gf_optimizer_step(optimizer, pool, &settings, 1, 1));
    REQUIRE(gf_optimizer_master(optimizer, 0)[3] == 1 - (float)step / 1024);
  }
  REQUIRE(weights[0] == 0x3F7E && weights[3] == 0x3F7E);  // 1 - 8 / 1024
  gf_optimizer_free(optimizer);
  gf_pool_free(pool);
}

static void lars(gf_communicator* communicator) {
  const size_t sizes[] = {2, 2};
  float x[] = {3, 4}, still[] = {0, 0};
  gf_pool* pool;
  gf_optimizer* optimizer;
  OK(gf_pool_create(communicator, sizes, 2, GF_FLOAT32, NULL, &pool));
  OK(gf_optimizer_create(sizes, 2, 1, &optimizer));
  OK(gf_optimizer_set_parameter(optimizer, 0, x, GF_FLOAT32));
  OK(gf_optimizer_set_parameter(optimizer, 1, still, GF_FLOAT32));
  float* const gradients = gf_pool_tensor(pool, 0);
  gradients[0] = 6;
  gradients[1] = 8;
  ((float*)gf_pool_tensor(pool, 1))[1] = 2;
  OK(gf_pool_ready_all(pool));
  OK(gf_pool_wait(pool, -1));
  gf_step_settings settings = GF_STEP_SETTINGS_INIT;
  settings.rate = 0.5F;
  settings.trust = 0.25F;
  OK(gf_optimizer_step(optimizer, pool, &settings, 1, 0.5));
  REQUIRE(x[0] == 3 - 0.125F * 3 && x[1] == 4 - 0.125F * 4);  // both norms are 5
  REQUIRE(still[0] == 0 && still[1] == -0.5F);                // a norm is 0
  gf_optimizer_free(optimizer);
  gf_pool_free(pool);
}

// A first step of AdamW is as long as the rate; another optimizer goes on from its arrays with the same bits.
static void adam(gf_communicator* communicator) {
  const size_t count = 2;
  float x[] = {4, -4}, y[] = {0, 0};
  gf_pool* pool;
  gf_optimizer *optimizer, *resumed;
  OK(gf_pool_create(communicator, &count, 1, GF_FLOAT32, NULL, &pool));
  OK(gf_optimizer_create(&count, 1, 0, &optimizer));
  OK(gf_optimizer_create(&count, 1, 0, &resumed));
  OK(gf_optimizer_set_parameter(optimizer, 0, x, GF_FLOAT32));
  OK(gf_optimizer_set_parameter(resumed, 0, y, GF_FLOAT32));
  REFUSED(gf_optimizer_set_adam(optimizer, 1, 0.5, 0, 1, 0), GF_ERROR_VALUE, "from 0 to below 1, not 1");
  REFUSED(gf_optimizer_set_adam(optimizer, 0.5, -1, 0, 1, 0), GF_ERROR_VALUE, "from 0 to below 1, not -1");
  REFUSED(gf_optimizer_set_adam(optimizer, 0.5, 0.5, NAN, 1, 0), GF_ERROR_VALUE, "epsilon is 0 or more");
  OK(gf_optimizer_set_adam(optimizer, 0.5, 0.75, 0, 1, 0));
  gf_step_settings settings = GF_STEP_SETTINGS_INIT;
  settings.rate = 0.5F;
  settings.weight_decay = 0.5F;
  for (int step = 1; step <= 2; ++step) {
    float* const gradients = gf_pool_tensor(pool, 0);
    gradients[0] = 2;
    gradients[1] = (float)-step;
    OK(gf_pool_ready_all(pool));
    OK(gf_pool_wait(pool, -1));
    settings.momentum = 0.5F;
    REFUSED(gf_optimizer_step(optimizer, pool, &settings, 1, 1), GF_ERROR_VALUE, "Adam has no momentum");
    settings.momentum = 0;
    OK(gf_optimizer_step(optimizer, pool, &settings, 1, 1));
    if (step == 1) {
      REQUIRE(fabsf(x[0] - 2.5F) < 1e-6F && fabsf(x[1] + 2.5F) < 1e-6F);  // 4 * (1 - 0.5 * 0.5) - 0.5
      memcpy(y, x, sizeof x);
      memcpy(gf_optimizer_momentum(resumed, 0), gf_optimizer_momentum(optimizer, 0), sizeof x);
      memcpy(gf_optimizer_mean_square(resumed, 0), gf_optimizer_mean_square(optimizer, 0), sizeof x);
      OK(gf_optimizer_set_adam(resumed, 0.5, 0.75, 0, 1, 1));
    } else {
      OK(gf_optimizer_step(resumed, pool, &settings, 1, 1));
      REQUIRE(memcmp(y, x, sizeof x) == 0);
    }
  }
  gf_optimizer_free(resumed);
  gf_optimizer_free(optimizer);
  gf_pool_free(pool);
}

int main(void) {
  gf_communicator* communicator;
  OK(gf_init(MPI_COMM_WORLD, NULL, &communicator));
  rank = gf_rank(communicator);
  size = gf_size(communicator);
  REQUIRE(size <= most);
  as_in_straight_lines(communicator);
  loss_scale(communicator);
  not_finite(communicator);
  master_weights(communicator);
  lars(communicator);
  adam(communicator);
  OK(gf_close(communicator));
  gf_communicator_free(communicator);
  MPI_Finalize();
  return 0;
}

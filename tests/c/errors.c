// Wrong arguments: every one is refused with its status and a message, and the communicator goes on.
#include <limits.h>
#include <math.h>
#include <pthread.h>

#include "expect.h"

static gf_communicator* communicator;
static float x[8], y[8];

static void wrong_communicators(void) {
  gf_communicator* made = communicator;
  REFUSED(gf_init(MPI_COMM_WORLD, NULL, NULL), GF_ERROR_VALUE, "communicator is NULL");
  REFUSED(gf_init_handle("??", 2, NULL, &made), GF_ERROR_MPI, "the mpi.h of another MPI library");
  REFUSED(gf_init(MPI_COMM_NULL, NULL, &made), GF_ERROR_VALUE, "MPI_COMM_NULL");
  REQUIRE(made == NULL);
  const gf_setting unknown[] = {{"speed", "11"}, {NULL, NULL}};
  REFUSED(gf_init(MPI_COMM_WORLD, unknown, &made), GF_ERROR_VALUE, "speed");
  const gf_setting wrong[] = {{"timeout", "soon"}, {NULL, NULL}};
  REFUSED(gf_init(MPI_COMM_WORLD, wrong, &made), GF_ERROR_VALUE, "soon");
  const gf_setting none[] = {{"timeout", NULL}, {NULL, NULL}};
  REFUSED(gf_init(MPI_COMM_WORLD, none, &made), GF_ERROR_VALUE, "timeout has the value NULL");

  if (gf_size(communicator) > 1) {
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm half, both;
    MPI_Comm_split(MPI_COMM_WORLD, rank == 0, rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank == 0 ? 1 : 0, 0, &both);
    REFUSED(gf_init(both, NULL, &made), GF_ERROR_TYPE, "intercommunicator");
    MPI_Comm_free(&both);
    MPI_Comm_free(&half);
    const gf_setting different[] = {{"window", rank == 0 ? "3" : "4"}, {NULL, NULL}};
    REFUSED(gf_init(MPI_COMM_WORLD, different, &made), GF_ERROR_MISMATCH, "window differs");
  }

  REQUIRE(gf_rank(NULL) == -1 && gf_size(NULL) == -1 && gf_local_rank(NULL) == -1);
  REQUIRE(gf_local_size(NULL) == -1 && gf_node(NULL) == -1 && gf_nodes(NULL) == -1);
  // None of these has a status, so the message is still that of the call that failed before.
  REQUIRE(gf_reduce_scatter_count(NULL, 8) == 0 && gf_dtype_size((gf_dtype)99) == 0);
  REQUIRE(gf_sparse_pool_overflowed(NULL) == -1 && gf_optimizer_momentum(NULL, 0) == NULL);
  REQUIRE(gf_optimizer_master(NULL, 0) == NULL && gf_pool_tensor(NULL, 0) == NULL);
  const char* const of_init = gf_size(communicator) > 1 ? "window differs" : "timeout has the value NULL";
  REQUIRE(strstr(gf_last_error_message(), of_init) != NULL);
  REFUSED(gf_close(NULL), GF_ERROR_VALUE, "communicator is NULL");
  REFUSED(gf_split(NULL, 0, 0, &made), GF_ERROR_VALUE, "communicator is NULL");
  REFUSED(gf_split(communicator, 0, 0, NULL), GF_ERROR_VALUE, "part is NULL");
  gf_communicator_free(NULL);
}

// That a collective refuses NULL wherever something is needed. `name` has an argument list of its own each time.
#define NEEDS_COMMUNICATOR(name, ...)                                                               \
  do {                                                                                              \
    gf_handle* handle = (gf_handle*)x;                                                              \
    REFUSED(gf_##name(NULL, __VA_ARGS__), GF_ERROR_VALUE, "communicator is NULL");                  \
    REFUSED(gf_##name##_async(NULL, __VA_ARGS__, &handle), GF_ERROR_VALUE, "communicator is NULL"); \
    REQUIRE(handle == NULL);                                                                        \
    REFUSED(gf_##name##_async(communicator, __VA_ARGS__, NULL), GF_ERROR_VALUE, "handle is NULL");  \
  } while (0)

static void null_arguments(void) {
  const int me = gf_rank(communicator);
  const size_t counts[64] = {1};
  size_t ones[64];
  for (int r = 0; r < 64; ++r) ones[r] = 1;
  NEEDS_COMMUNICATOR(allreduce, x, y, 4, GF_FLOAT32, GF_SUM, NULL);
  NEEDS_COMMUNICATOR(reduce, x, y, 4, GF_FLOAT32, GF_SUM, 0, NULL);
  NEEDS_COMMUNICATOR(broadcast, x, 4, GF_FLOAT32, 0, NULL);
  NEEDS_COMMUNICATOR(allgather, x, y, 1, GF_FLOAT32, NULL);
  NEEDS_COMMUNICATOR(allgatherv, x, y, counts, GF_FLOAT32, NULL);
  NEEDS_COMMUNICATOR(reduce_scatter, x, y, 4, GF_FLOAT32, GF_SUM, NULL);
  NEEDS_COMMUNICATOR(alltoall, x, y, 1, GF_FLOAT32, NULL);
  NEEDS_COMMUNICATOR(gather, x, y, 1, GF_FLOAT32, 0, NULL);
  NEEDS_COMMUNICATOR(scatter, x, y, 1, GF_FLOAT32, 0, NULL);
  gf_handle* handle;
  REFUSED(gf_barrier(NULL), GF_ERROR_VALUE, "communicator is NULL");
  REFUSED(gf_barrier_async(NULL, &handle), GF_ERROR_VALUE, "communicator is NULL");
  REFUSED(gf_barrier_async(communicator, NULL), GF_ERROR_VALUE, "handle is NULL");

  const char* const no_input = "input is NULL, but has";
  const char* const no_output = "output is NULL, but has";
  REFUSED(gf_allreduce(communicator, NULL, y, 4, GF_FLOAT32, GF_SUM, NULL), GF_ERROR_VALUE, no_input);
  REFUSED(gf_allreduce(communicator, x, NULL, 4, GF_FLOAT32, GF_SUM, NULL), GF_ERROR_VALUE, no_output);
  REFUSED(gf_reduce(communicator, NULL, y, 4, GF_FLOAT32, GF_SUM, 0, NULL), GF_ERROR_VALUE, no_input);
  REFUSED(gf_reduce(communicator, x, NULL, 4, GF_FLOAT32, GF_SUM, me, NULL), GF_ERROR_VALUE, no_output);
  REFUSED(gf_broadcast(communicator, NULL, 4, GF_FLOAT32, 0, NULL), GF_ERROR_VALUE, "data is NULL, but has");
  REFUSED(gf_allgather(communicator, NULL, y, 1, GF_FLOAT32, NULL), GF_ERROR_VALUE, no_input);
  REFUSED(gf_allgather(communicator, x, NULL, 1, GF_FLOAT32, NULL), GF_ERROR_VALUE, no_output);
  REFUSED(gf_allgatherv(communicator, x, y, NULL, GF_FLOAT32, NULL), GF_ERROR_VALUE, "counts is NULL");
  REFUSED(gf_allgatherv(communicator, NULL, y, ones, GF_FLOAT32, NULL), GF_ERROR_VALUE, no_input);
  REFUSED(gf_allgatherv(communicator, x, NULL, ones, GF_FLOAT32, NULL), GF_ERROR_VALUE, no_output);
  REFUSED(gf_reduce_scatter(communicator, NULL, y, 8, GF_FLOAT32, GF_SUM, NULL), GF_ERROR_VALUE, no_input);
  REFUSED(gf_reduce_scatter(communicator, x, NULL, 8, GF_FLOAT32, GF_SUM, NULL), GF_ERROR_VALUE, no_output);
  REFUSED(gf_alltoall(communicator, NULL, y, 1, GF_FLOAT32, NULL), GF_ERROR_VALUE, no_input);
  REFUSED(gf_alltoall(communicator, x, NULL, 1, GF_FLOAT32, NULL), GF_ERROR_VALUE, no_output);
  REFUSED(gf_gather(communicator, NULL, y, 1, GF_FLOAT32, 0, NULL), GF_ERROR_VALUE, no_input);
  REFUSED(gf_gather(communicator, x, NULL, 1, GF_FLOAT32, me, NULL), GF_ERROR_VALUE, no_output);
  REFUSED(gf_scatter(communicator, NULL, y, 1, GF_FLOAT32, me, NULL), GF_ERROR_VALUE, no_input);
  REFUSED(gf_scatter(communicator, x, NULL, 1, GF_FLOAT32, 0, NULL), GF_ERROR_VALUE, no_output);

  int done = 7;
  int64_t count = 7;
  REFUSED(gf_handle_test(NULL, &done), GF_ERROR_VALUE, "handle is NULL");
  REFUSED(gf_handle_wait(NULL, 0), GF_ERROR_VALUE, "handle is NULL");
  REFUSED(gf_handle_nonfinite(NULL, &count), GF_ERROR_VALUE, "handle is NULL");
  gf_handle_free(NULL);
  size_t index = 7;
  REFUSED(gf_wait_all(NULL, 1, -1), GF_ERROR_VALUE, "handles is NULL");
  REFUSED(gf_wait_any(NULL, 1, -1, &index), GF_ERROR_VALUE, "handles is NULL");
  REFUSED(gf_wait_any(NULL, 0, -1, NULL), GF_ERROR_VALUE, "index is NULL");
  REFUSED(gf_wait_all(NULL, 0, NAN), GF_ERROR_VALUE, "not a number");
  REFUSED(gf_wait_any(NULL, 0, NAN, &index), GF_ERROR_VALUE, "not a number");

  gf_memory* memory;
  REFUSED(gf_memory_allocate(NULL, 64, &memory), GF_ERROR_VALUE, "communicator is NULL");
  REFUSED(gf_memory_allocate(communicator, 64, NULL), GF_ERROR_VALUE, "memory is NULL");
  REQUIRE(gf_memory_data(NULL) == NULL && gf_memory_bytes(NULL) == 0);
  gf_memory_free(NULL);

  gf_pool* pool;
  REFUSED(gf_pool_create(NULL, ones, 1, GF_FLOAT32, NULL, &pool), GF_ERROR_VALUE, "communicator is NULL");
  REFUSED(gf_pool_create(communicator, NULL, 1, GF_FLOAT32, NULL, &pool), GF_ERROR_VALUE, "counts is NULL");
  REFUSED(gf_pool_create(communicator, ones, 1, GF_FLOAT32, NULL, NULL), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_pool_set_stream(NULL, NULL), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_pool_ready(NULL, 0), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_pool_ready_all(NULL), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_pool_wait(NULL, -1), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_pool_rollback(NULL), GF_ERROR_VALUE, "pool is NULL");
  gf_pool_options pool_options = GF_POOL_OPTIONS_INIT;
  pool_options.size = 3;
  REFUSED(gf_pool_create(communicator, ones, 1, GF_FLOAT32, &pool_options, &pool), GF_ERROR_VALUE,
          "the size of a gf_pool_options is 3");
  REQUIRE(gf_pool_tensor(NULL, 0) == NULL && gf_pool_tensors(NULL) == 0 && gf_pool_bytes(NULL) == 0);
  REFUSED(gf_pool_nonfinite(NULL, &count), GF_ERROR_VALUE, "pool is NULL");
  REQUIRE(count == -1);
  gf_pool_free(NULL);

  REFUSED(gf_send(NULL, x, 1, GF_FLOAT32, 0), GF_ERROR_VALUE, "communicator is NULL");
  REFUSED(gf_recv(NULL, x, 1, GF_FLOAT32, 0), GF_ERROR_VALUE, "communicator is NULL");
  REFUSED(gf_send(communicator, NULL, 1, GF_FLOAT32, 0), GF_ERROR_VALUE, "data is NULL");
  REFUSED(gf_recv(communicator, NULL, 1, GF_FLOAT32, 0), GF_ERROR_VALUE, "data is NULL");
  REQUIRE(gf_reduce_scatter_count(NULL, 8) == 0);
}

static void null_sparse_pools(void) {
  const size_t four = 4;
  uint8_t chunks[4];
  gf_sparse_pool* pool = (gf_sparse_pool*)x;
  REFUSED(gf_sparse_pool_create(NULL, &four, 1, GF_FLOAT32, NULL, &pool), GF_ERROR_VALUE, "communicator is NULL");
  REQUIRE(pool == NULL);
  REFUSED(gf_sparse_pool_create(communicator, NULL, 1, GF_FLOAT32, NULL, &pool), GF_ERROR_VALUE, "counts is NULL");
  REFUSED(gf_sparse_pool_create(communicator, &four, 1, GF_FLOAT32, NULL, NULL), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_sparse_pool_ready(NULL, 0), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_sparse_pool_ready_all(NULL), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_sparse_pool_wait(NULL, 1, -1), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_sparse_pool_rollback(NULL), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_sparse_pool_zero(NULL), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_sparse_pool_set_loss_scale(NULL, 2), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_sparse_pool_important(NULL, chunks), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_sparse_pool_residuals(NULL, x), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_sparse_pool_restore(NULL, x, NULL), GF_ERROR_VALUE, "pool is NULL");
  REQUIRE(gf_sparse_pool_tensor(NULL, 0) == NULL && gf_sparse_pool_extra(NULL) == NULL);
  REQUIRE(gf_sparse_pool_tensors(NULL) == 0 && gf_sparse_pool_bytes(NULL) == 0 && gf_sparse_pool_chunks(NULL) == 0);
  REQUIRE(gf_sparse_pool_overflowed(NULL) == -1);
  gf_sparse_pool_free(NULL);

  OK(gf_sparse_pool_create(communicator, &four, 1, GF_FLOAT32, NULL, &pool));
  REQUIRE(gf_sparse_pool_extra(pool) == NULL);
  REFUSED(gf_sparse_pool_important(pool, NULL), GF_ERROR_VALUE, "important is NULL");
  REFUSED(gf_sparse_pool_residuals(pool, NULL), GF_ERROR_VALUE, "residuals is NULL");
  REFUSED(gf_sparse_pool_restore(pool, NULL, NULL), GF_ERROR_VALUE, "residuals is NULL");
  gf_sparse_pool_free(pool);

  OK(gf_sparse_pool_create(communicator, NULL, 0, GF_FLOAT32, NULL, &pool));  // nothing is needed where nothing is
  OK(gf_sparse_pool_important(pool, NULL));
  OK(gf_sparse_pool_residuals(pool, NULL));
  OK(gf_sparse_pool_restore(pool, NULL, NULL));
  OK(gf_sparse_pool_wait(pool, 1, -1));
  gf_sparse_pool_free(pool);
}

static void wrong_sparse_pools(void) {
  const size_t four = 4, huge = (size_t)-1;
  gf_sparse_pool* pool;
  gf_sparse_pool_options options = GF_SPARSE_POOL_OPTIONS_INIT;
  REFUSED(gf_sparse_pool_create(communicator, &huge, 1, GF_FLOAT32, NULL, &pool), GF_ERROR_VALUE, "more elements than");
  REFUSED(gf_sparse_pool_create(communicator, &four, 1, (gf_dtype)77, NULL, &pool), GF_ERROR_TYPE, "77 is not");
  REFUSED(gf_sparse_pool_create(communicator, &four, 1, GF_FLOAT64, NULL, &pool), GF_ERROR_TYPE, "not float64");
  options.size = 3;
  REFUSED(gf_sparse_pool_create(communicator, &four, 1, GF_FLOAT32, &options, &pool), GF_ERROR_VALUE,
          "the size of a gf_sparse_pool_options is 3");
  options.size = sizeof options;
  options.chunk_size = 0;
  REFUSED(gf_sparse_pool_create(communicator, &four, 1, GF_FLOAT32, &options, &pool), GF_ERROR_VALUE, "1 element");
  options.chunk_size = 2;
  options.momentum = 1.5F;
  REFUSED(gf_sparse_pool_create(communicator, &four, 1, GF_FLOAT32, &options, &pool), GF_ERROR_VALUE, "from 0 to 1");
  options.momentum = NAN;
  REFUSED(gf_sparse_pool_create(communicator, &four, 1, GF_FLOAT32, &options, &pool), GF_ERROR_VALUE, "from 0 to 1");
  options.momentum = 1;
  options.wire = GF_INT8;
  REFUSED(gf_sparse_pool_create(communicator, &four, 1, GF_FLOAT32, &options, &pool), GF_ERROR_VALUE, "int8");
  options.wire = GF_NO_DTYPE;
  options.algorithm = (gf_algorithm)99;
  REFUSED(gf_sparse_pool_create(communicator, &four, 1, GF_FLOAT32, &options, &pool), GF_ERROR_VALUE, "99 is not");
  options.algorithm = GF_ALGORITHM_AUTO;
  options.extra = huge;
  REFUSED(gf_sparse_pool_create(communicator, &four, 1, GF_FLOAT32, &options, &pool), GF_ERROR_VALUE,
          "more elements than");
  options.extra = 0;
  if (gf_size(communicator) > 1) {
    options.chunk_size = gf_rank(communicator) == 0 ? 2 : 3;
    REFUSED(gf_sparse_pool_create(communicator, &four, 1, GF_FLOAT32, &options, &pool), GF_ERROR_MISMATCH,
            "different sparse gradient pools");
    options.chunk_size = 2;
  }

  options.size = offsetof(gf_sparse_pool_options, wire);  // of a program that does not know the rest
  options.wire = (gf_dtype)77;
  OK(gf_sparse_pool_create(communicator, &four, 1, GF_FLOAT32, &options, &pool));
  REQUIRE(gf_sparse_pool_chunks(pool) == 2);  // chunks end with the last tensor
  REFUSED(gf_sparse_pool_wait(pool, 0, -1), GF_ERROR_VALUE, "above 0 and at most 1, not 0");
  REFUSED(gf_sparse_pool_wait(pool, 1.5, -1), GF_ERROR_VALUE, "above 0 and at most 1, not 1.5");
  REFUSED(gf_sparse_pool_wait(pool, NAN, -1), GF_ERROR_VALUE, "above 0 and at most 1");
  REFUSED(gf_sparse_pool_wait(pool, 1, NAN), GF_ERROR_VALUE, "not a number");
  REFUSED(gf_sparse_pool_set_loss_scale(pool, -2), GF_ERROR_VALUE, "power of two");
  REFUSED(gf_sparse_pool_ready(pool, 1), GF_ERROR_VALUE, "not in the pool");
  OK(gf_sparse_pool_ready(pool, 0));
  REFUSED(gf_sparse_pool_ready(pool, 0), GF_ERROR_VALUE, "already ready");
  REFUSED(gf_sparse_pool_zero(pool), GF_ERROR_VALUE, "between iterations");
  REFUSED(gf_sparse_pool_residuals(pool, y), GF_ERROR_VALUE, "between iterations");
  REFUSED(gf_sparse_pool_set_loss_scale(pool, 2), GF_ERROR_VALUE, "between iterations");
  OK(gf_sparse_pool_wait(pool, 1, -1));
  gf_sparse_pool_free(pool);
}

static void null_top_k_pools(void) {
  const size_t four = 4;
  gf_top_k_pool* pool = (gf_top_k_pool*)x;
  REFUSED(gf_top_k_pool_create(NULL, &four, 1, GF_FLOAT32, NULL, &pool), GF_ERROR_VALUE, "communicator is NULL");
  REQUIRE(pool == NULL);
  REFUSED(gf_top_k_pool_create(communicator, NULL, 1, GF_FLOAT32, NULL, &pool), GF_ERROR_VALUE, "counts is NULL");
  REFUSED(gf_top_k_pool_create(communicator, &four, 1, GF_FLOAT32, NULL, NULL), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_top_k_pool_ready(NULL, 0), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_top_k_pool_ready_all(NULL), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_top_k_pool_wait(NULL, -1), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_top_k_pool_rollback(NULL), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_top_k_pool_zero(NULL), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_top_k_pool_set_ratios(NULL, NULL, 0), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_top_k_pool_set_loss_scale(NULL, 2), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_top_k_pool_residuals(NULL, x), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_top_k_pool_velocities(NULL, x), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_top_k_pool_restore(NULL, x, x), GF_ERROR_VALUE, "pool is NULL");
  REQUIRE(gf_top_k_pool_tensor(NULL, 0) == NULL && gf_top_k_pool_extra(NULL) == NULL);
  REQUIRE(gf_top_k_pool_tensors(NULL) == 0 && gf_top_k_pool_bytes(NULL) == 0 && gf_top_k_pool_layers(NULL) == 0);
  REQUIRE(gf_top_k_pool_overflowed(NULL) == -1);
  gf_top_k_pool_free(NULL);

  OK(gf_top_k_pool_create(communicator, &four, 1, GF_FLOAT32, NULL, &pool));
  REQUIRE(gf_top_k_pool_extra(pool) == NULL);
  REFUSED(gf_top_k_pool_residuals(pool, NULL), GF_ERROR_VALUE, "residuals is NULL");
  REFUSED(gf_top_k_pool_velocities(pool, x), GF_ERROR_VALUE, "no velocities without a momentum");
  REFUSED(gf_top_k_pool_restore(pool, NULL, NULL), GF_ERROR_VALUE, "residuals is NULL");
  gf_top_k_pool_free(pool);

  OK(gf_top_k_pool_create(communicator, NULL, 0, GF_FLOAT32, NULL, &pool));  // nothing is needed where nothing is
  OK(gf_top_k_pool_residuals(pool, NULL));
  OK(gf_top_k_pool_restore(pool, NULL, NULL));
  OK(gf_top_k_pool_wait(pool, -1));
  gf_top_k_pool_free(pool);
}

static void wrong_top_k_pools(void) {
  const size_t four = 4, huge = (size_t)-1, two = 2;
  gf_top_k_pool* pool;
  REFUSED(gf_top_k_pool_create(communicator, &huge, 1, GF_FLOAT32, NULL, &pool), GF_ERROR_VALUE, "more elements than");
  REFUSED(gf_top_k_pool_create(communicator, &four, 1, GF_FLOAT64, NULL, &pool), GF_ERROR_TYPE, "not float64");
#define WRONG(field, value, status, text)                                                             \
  do {                                                                                                \
    gf_top_k_pool_options options = GF_TOP_K_POOL_OPTIONS_INIT;                                       \
    options.field = value;                                                                            \
    REFUSED(gf_top_k_pool_create(communicator, &four, 1, GF_FLOAT32, &options, &pool), status, text); \
  } while (0)
  WRONG(size, 3, GF_ERROR_VALUE, "the size of a gf_top_k_pool_options is 3");
  WRONG(ratio, 0.5, GF_ERROR_VALUE, "1 or more, not 0.5");
  WRONG(layers, &two; options.layer_count = 1, GF_ERROR_VALUE, "add up to the 1 tensors");
  WRONG(selection, (gf_selection)9, GF_ERROR_VALUE, "9 is not a gf_selection");
  WRONG(momentum, 1, GF_ERROR_VALUE, "from 0 to below 1");
  WRONG(momentum, NAN, GF_ERROR_VALUE, "from 0 to below 1");
  WRONG(clip, -1, GF_ERROR_VALUE, "above 0, not -1");
  WRONG(wire, GF_INT8, GF_ERROR_VALUE, "int8");
  WRONG(wire, GF_FLOAT8_E4M3, GF_ERROR_VALUE, "sends values one by one, and those of float8_e4m3 share a scale");
  WRONG(algorithm, (gf_algorithm)99, GF_ERROR_VALUE, "99 is not");
  WRONG(extra, huge, GF_ERROR_VALUE, "more elements than");
#undef WRONG
}

static void wrong_optimizers(void) {
  const size_t counts[] = {4, 2}, huge = (size_t)-1;
  gf_optimizer* optimizer = (gf_optimizer*)x;
  gf_pool* pool;
  gf_sparse_pool* sparse;
  gf_step_settings settings[2] = {GF_STEP_SETTINGS_INIT, GF_STEP_SETTINGS_INIT};
  REFUSED(gf_optimizer_create(NULL, 1, 0, &optimizer), GF_ERROR_VALUE, "counts is NULL");
  REQUIRE(optimizer == NULL);
  REFUSED(gf_optimizer_create(counts, 2, 0, NULL), GF_ERROR_VALUE, "optimizer is NULL");
  REFUSED(gf_optimizer_create(&huge, 1, 0, &optimizer), GF_ERROR_VALUE, "more elements than");
  REFUSED(gf_optimizer_set_parameter(NULL, 0, x, GF_FLOAT32), GF_ERROR_VALUE, "optimizer is NULL");
  REFUSED(gf_optimizer_set_adam(NULL, 0.9, 0.999, 1e-8, 0, 0), GF_ERROR_VALUE, "optimizer is NULL");
  REQUIRE(gf_optimizer_momentum(NULL, 0) == NULL && gf_optimizer_master(NULL, 0) == NULL);
  REQUIRE(gf_optimizer_mean_square(NULL, 0) == NULL);
  gf_optimizer_free(NULL);

  OK(gf_pool_create(communicator, counts, 2, GF_FLOAT32, NULL, &pool));
  OK(gf_sparse_pool_create(communicator, counts, 1, GF_FLOAT32, NULL, &sparse));
  REFUSED(gf_pool_nonfinite(pool, NULL), GF_ERROR_VALUE, "count is NULL");
  REFUSED(gf_optimizer_step(NULL, pool, settings, 1, 1), GF_ERROR_VALUE, "optimizer is NULL");
  REFUSED(gf_optimizer_step_sparse(NULL, sparse, settings, 1, 1), GF_ERROR_VALUE, "optimizer is NULL");

  OK(gf_optimizer_create(counts, 2, 0, &optimizer));
  REFUSED(gf_optimizer_set_parameter(optimizer, 2, x, GF_FLOAT32), GF_ERROR_VALUE, "tensor 2 is not in the optimizer");
  REFUSED(gf_optimizer_set_parameter(optimizer, 0, NULL, GF_FLOAT32), GF_ERROR_VALUE, "data is NULL");
  REFUSED(gf_optimizer_set_parameter(optimizer, 0, x, GF_FLOAT64), GF_ERROR_TYPE, "not float64");
  REFUSED(gf_optimizer_set_parameter(optimizer, 0, x, (gf_dtype)77), GF_ERROR_TYPE, "77 is not");
  OK(gf_optimizer_set_parameter(optimizer, 0, x, GF_FLOAT32));
  REFUSED(gf_optimizer_step(optimizer, pool, settings, 1, 1), GF_ERROR_VALUE, "the pool has none: ready and wait");
  OK(gf_pool_ready(pool, 0));
  REFUSED(gf_optimizer_step(optimizer, pool, settings, 1, 1), GF_ERROR_VALUE, "1 of the 2 tensors of the pool are");
  OK(gf_pool_wait(pool, -1));
  REFUSED(gf_optimizer_step(optimizer, pool, settings, 1, 1), GF_ERROR_VALUE, "weights of tensor 1 are missing");
  OK(gf_optimizer_set_parameter(optimizer, 1, x + 4, GF_FLOAT32));
  REQUIRE(gf_optimizer_momentum(optimizer, 2) == NULL && gf_optimizer_master(optimizer, 0) == NULL);

  REFUSED(gf_optimizer_step(optimizer, NULL, settings, 1, 1), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_optimizer_step_sparse(optimizer, NULL, settings, 1, 1), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_optimizer_step_sparse(optimizer, sparse, settings, 1, 1), GF_ERROR_VALUE, "the pool has none");
  OK(gf_sparse_pool_ready_all(sparse));
  OK(gf_sparse_pool_wait(sparse, 1, -1));
  REFUSED(gf_optimizer_step_sparse(optimizer, sparse, settings, 1, 1), GF_ERROR_VALUE, "other tensors");
  REFUSED(gf_optimizer_step(optimizer, pool, NULL, 2, 1), GF_ERROR_VALUE, "settings is NULL");
  REFUSED(gf_optimizer_step(optimizer, pool, settings, 3, 1), GF_ERROR_VALUE, "3 tensors, and 2 tensors");
  REFUSED(gf_optimizer_step(optimizer, pool, settings, 1, 0), GF_ERROR_VALUE, "gradient_scale is above 0");
  REFUSED(gf_optimizer_step(optimizer, pool, settings, 1, INFINITY), GF_ERROR_VALUE, "gradient_scale is above 0");
  settings[1].size = 0;
  REFUSED(gf_optimizer_step(optimizer, pool, settings, 2, 1), GF_ERROR_VALUE, "GF_STEP_SETTINGS_INIT");
  settings[1].size = 4096;
  REFUSED(gf_optimizer_step(optimizer, pool, settings, 2, 1), GF_ERROR_VALUE, "sizes up to");
  settings[1].size = sizeof(size_t);
  REFUSED(gf_optimizer_step(optimizer, pool, settings, 2, 1), GF_ERROR_VALUE, "another size than the first");
  settings[1].size = sizeof settings[1];
  settings[1].rate = -1;
  REFUSED(gf_optimizer_step(optimizer, pool, settings, 2, 1), GF_ERROR_VALUE, "rate is 0 or more, not -1");
  settings[1].rate = 0;
  settings[1].momentum = NAN;
  REFUSED(gf_optimizer_step(optimizer, pool, settings, 2, 1), GF_ERROR_VALUE, "momentum is 0 or more");
  settings[1].momentum = 0;
  settings[1].weight_decay = INFINITY;
  REFUSED(gf_optimizer_step(optimizer, pool, settings, 2, 1), GF_ERROR_VALUE, "weight_decay is 0 or more");
  settings[1].weight_decay = 0;
  settings[1].trust = -1;
  REFUSED(gf_optimizer_step(optimizer, pool, settings, 2, 1), GF_ERROR_VALUE, "trust is 0 or more");
  settings[1].trust = 0;
  OK(gf_optimizer_step(optimizer, pool, settings, 2, 1));
  REFUSED(gf_optimizer_step(optimizer, pool, settings, 2, 1), GF_ERROR_VALUE, "these gradients already");
  REFUSED(gf_pool_wait(pool, -1), GF_ERROR_VALUE, "no rank made a tensor of the pool ready");
  REFUSED(gf_optimizer_step(optimizer, pool, settings, 2, 1), GF_ERROR_VALUE, "the pool has none");
  gf_pool_free(pool);
  OK(gf_pool_create(communicator, counts, 2, GF_FLOAT64, NULL, &pool));
  OK(gf_pool_ready_all(pool));
  OK(gf_pool_wait(pool, -1));
  REFUSED(gf_optimizer_step(optimizer, pool, settings, 2, 1), GF_ERROR_TYPE, "not float64");
  gf_optimizer_free(optimizer);
  gf_sparse_pool_free(sparse);
  gf_pool_free(pool);
}

static void wrong_values(void) {
  const int size = gf_size(communicator);
  const size_t huge = (size_t)-1;
  const size_t too_many[64] = {(size_t)1 << 62, (size_t)1 << 62};
  REFUSED(gf_allreduce(communicator, x, x, 4, (gf_dtype)77, GF_SUM, NULL), GF_ERROR_TYPE, "77 is not a gf_dtype");
  REFUSED(gf_allreduce(communicator, x, x, 4, GF_NO_DTYPE, GF_SUM, NULL), GF_ERROR_TYPE, "0 is not a gf_dtype");
  REFUSED(gf_allreduce(communicator, x, x, 4, GF_FLOAT32, (gf_op)5, NULL), GF_ERROR_VALUE, "5 is not a gf_op");
  REFUSED(gf_allreduce(communicator, x, x, 4, GF_INT32, GF_MEAN, NULL), GF_ERROR_TYPE, "mean");
  REFUSED(gf_allreduce(communicator, x, x, 4, GF_BOOL, GF_SUM, NULL), GF_ERROR_TYPE, "bool");
  REFUSED(gf_broadcast(communicator, x, 4, GF_FLOAT32, size, NULL), GF_ERROR_VALUE, "is not a rank");
  REFUSED(gf_gather(communicator, x, y, 1, GF_FLOAT32, -1, NULL), GF_ERROR_VALUE, "is not a rank");
  REFUSED(gf_allreduce(communicator, x, x, huge, GF_FLOAT32, GF_SUM, NULL), GF_ERROR_VALUE, "more elements than");
  REFUSED(gf_alltoall(communicator, x, y, huge / 8, GF_FLOAT64, NULL), GF_ERROR_VALUE, "more elements than");
  if (size > 1) {
    REFUSED(gf_allgatherv(communicator, x, y, too_many, GF_INT8, NULL), GF_ERROR_VALUE, "more elements than");
  }
  REFUSED(gf_allreduce(communicator, x, x + 1, 4, GF_FLOAT32, GF_SUM, NULL), GF_ERROR_VALUE, "overlap");
  REFUSED(gf_allgather(communicator, x, x, 1, GF_FLOAT32, NULL), GF_ERROR_VALUE, "does not work in place");
  REFUSED(gf_alltoall(communicator, x, x, 1, GF_FLOAT32, NULL), GF_ERROR_VALUE, "does not work in place");
  REFUSED(gf_allreduce(communicator, MPI_IN_PLACE, x, 4, GF_FLOAT32, GF_SUM, NULL), GF_ERROR_VALUE, "MPI_IN_PLACE");
  REFUSED(gf_send(communicator, x, 1, GF_FLOAT32, gf_rank(communicator)), GF_ERROR_VALUE, "itself");
  REFUSED(gf_recv(communicator, x, 1, GF_FLOAT32, size), GF_ERROR_VALUE, "is not a rank");
  REFUSED(gf_send(communicator, x, 1, (gf_dtype)77, 0), GF_ERROR_TYPE, "77");
  REFUSED(gf_recv(communicator, x, huge, GF_FLOAT32, 0), GF_ERROR_VALUE, "more elements than");
  gf_pool* pool;
  const size_t counts[] = {huge, 2};
  REFUSED(gf_pool_create(communicator, counts, 2, GF_FLOAT32, NULL, &pool), GF_ERROR_VALUE, "more elements than");
  REFUSED(gf_pool_create(communicator, counts + 1, 1, (gf_dtype)77, NULL, &pool), GF_ERROR_TYPE, "77 is not");
  REFUSED(gf_pool_create(communicator, counts + 1, 1, GF_INT32, NULL, &pool), GF_ERROR_TYPE, "floating");
  REFUSED(gf_pool_create(communicator, counts + 1, 1, GF_FLOAT8_E4M3, NULL, &pool), GF_ERROR_TYPE, "10 is not");
  REQUIRE(gf_dtype_size((gf_dtype)77) == 0 && gf_dtype_size(GF_BFLOAT16) == 2 && gf_dtype_size(GF_FLOAT64) == 8);
}

static void wrong_options(void) {
  gf_call_options options = GF_CALL_OPTIONS_INIT;
  options.size = 0;
  REFUSED(gf_allreduce(communicator, x, x, 4, GF_FLOAT32, GF_SUM, &options), GF_ERROR_VALUE, "GF_CALL_OPTIONS_INIT");
  options.size = 4096;
  REFUSED(gf_allreduce(communicator, x, x, 4, GF_FLOAT32, GF_SUM, &options), GF_ERROR_VALUE, "GF_CALL_OPTIONS_INIT");
  options.size = offsetof(gf_call_options, wire);  // of a program that does not know the wire
  options.wire = (gf_dtype)77;
  OK(gf_allreduce(communicator, x, y, 4, GF_FLOAT32, GF_SUM, &options));
  options.size = sizeof options;
  REFUSED(gf_allreduce(communicator, x, x, 4, GF_FLOAT32, GF_SUM, &options), GF_ERROR_TYPE, "77 is not a gf_dtype");
  options.wire = GF_INT8;
  REFUSED(gf_allreduce(communicator, x, x, 4, GF_FLOAT32, GF_SUM, &options), GF_ERROR_VALUE, "not 'int8'");
  options.wire = GF_FLOAT16;
  REFUSED(gf_broadcast(communicator, x, 4, GF_FLOAT32, 0, &options), GF_ERROR_VALUE, "no wire");
  options.wire = GF_NO_DTYPE;
  options.algorithm = (gf_algorithm)99;
  REFUSED(gf_allreduce(communicator, x, x, 4, GF_FLOAT32, GF_SUM, &options), GF_ERROR_VALUE, "99 is not");
  options.algorithm = GF_ALGORITHM_RING;
  REFUSED(gf_broadcast(communicator, x, 4, GF_FLOAT32, 0, &options), GF_ERROR_VALUE, "does not serve broadcast");
  options.algorithm = GF_ALGORITHM_NCCL;
  REFUSED(gf_broadcast(communicator, x, 4, GF_FLOAT32, 0, &options), GF_ERROR_VALUE, "memory of the host");
  options.device = 1000;  // without a device at all GF_ERROR_SYSTEM
  REQUIRE(gf_broadcast(communicator, x, 4, GF_FLOAT32, 0, &options) != GF_SUCCESS);
  REQUIRE(strstr(gf_last_error_message(), "CUDA") != NULL);
}

static void different_calls(void) {
  if (gf_size(communicator) == 1) return;
  const size_t count = gf_rank(communicator) == 0 ? 3 : 4;
  gf_handle* handle;
  REFUSED(gf_allreduce(communicator, x, x, count, GF_FLOAT32, GF_SUM, NULL), GF_ERROR_MISMATCH, "different calls");
  OK(gf_allreduce_async(communicator, x, x, count, GF_FLOAT32, GF_SUM, NULL, &handle));
  REFUSED(gf_handle_wait(handle, -1), GF_ERROR_MISMATCH, "different calls");
  REFUSED(gf_handle_wait(handle, 1), GF_ERROR_MISMATCH, "different calls");  // as often as it is asked
  gf_handle_free(handle);

  gf_call_options options = GF_CALL_OPTIONS_INIT;
  const size_t shapes[2][2] = {{2, 3}, {3, 2}};
  const int odd = gf_rank(communicator) == 0;
  options.label = odd ? "b" : "a";
  REFUSED(gf_allreduce(communicator, x, x, 6, GF_FLOAT32, GF_SUM, &options), GF_ERROR_MISMATCH,
          "rank 0: allreduce of 'b', 6 float32, op sum");
  options.shape = shapes[odd];
  options.dimensions = 2;
  options.label = NULL;
  REFUSED(gf_allreduce(communicator, x, x, 6, GF_FLOAT32, GF_SUM, &options), GF_ERROR_MISMATCH,
          "rank 0: allreduce of '' (3, 2), 6 float32, op sum");
  options.label = "c";
  OK(gf_scatter(communicator, x, y, 1, GF_FLOAT32, 0, &options));  // the shape does not count
  OK(gf_allreduce_async(communicator, x, x, 6, GF_FLOAT32, GF_SUM, &options, &handle));
  options.label = NULL;  // it has been copied
  REFUSED(gf_handle_wait(handle, -1), GF_ERROR_MISMATCH, "rank 0: allreduce of 'c' (3, 2), 6 float32, op sum");
  gf_handle_free(handle);
  REFUSED(gf_allreduce(communicator, x, x, 5, GF_FLOAT32, GF_SUM, &options), GF_ERROR_VALUE,
          "the shape of the label has 6 elements, but the tensor has 5");
  options.shape = shapes[0];
  OK(gf_allreduce(communicator, x, x, 6, GF_FLOAT32, GF_SUM, &options));
}

static void waits_that_pass(void) {
  gf_handle* handle;
  int done = 7;
  int64_t nonfinite = 7;
  if (gf_rank(communicator) == 0) {
    OK(gf_barrier_async(communicator, &handle));
    if (gf_size(communicator) > 1) {
      OK(gf_handle_test(handle, &done));
      REQUIRE(done == 0);
      REFUSED(gf_handle_wait(handle, 0.01), GF_ERROR_TIMEOUT, "it goes on");
      REFUSED(gf_handle_wait(handle, 0), GF_ERROR_TIMEOUT, "it goes on");
      OK(gf_handle_nonfinite(handle, &nonfinite));
      REQUIRE(nonfinite == -1);
    }
    MPI_Barrier(MPI_COMM_WORLD);
  } else {
    MPI_Barrier(MPI_COMM_WORLD);
    OK(gf_barrier_async(communicator, &handle));
  }
  REFUSED(gf_handle_wait(handle, NAN), GF_ERROR_VALUE, "not a number");
  OK(gf_handle_wait(handle, INFINITY));
  OK(gf_handle_wait(handle, 0));
  OK(gf_handle_test(handle, &done));
  REQUIRE(done == 1);
  REFUSED(gf_handle_test(handle, NULL), GF_ERROR_VALUE, "done is NULL");
  REFUSED(gf_handle_nonfinite(handle, NULL), GF_ERROR_VALUE, "count is NULL");
  gf_handle_free(handle);
}

static void* another_thread(void* unused) {
  REQUIRE(gf_last_error_message()[0] == '\0');
  EXPECT(gf_close(NULL), GF_ERROR_VALUE);
  REQUIRE(strlen(gf_last_error_message()) > 0);
  return unused;
}

static void messages_belong_to_threads(void) {
  pthread_t thread;
  REFUSED(gf_pool_wait(NULL, -1), GF_ERROR_VALUE, "pool");
  REQUIRE(pthread_create(&thread, NULL, another_thread, NULL) == 0);
  REQUIRE(pthread_join(thread, NULL) == 0);
  REQUIRE(strstr(gf_last_error_message(), "pool") != NULL);
  OK(gf_barrier(communicator));
  REQUIRE(strstr(gf_last_error_message(), "pool") != NULL);  // a call that succeeds leaves it
}

int main(void) {
  REQUIRE(gf_last_error_message()[0] == '\0');
  REQUIRE(gf_version() == GF_VERSION);
  REQUIRE(strcmp(gf_status_name(GF_SUCCESS), "GF_SUCCESS") == 0);
  REQUIRE(strcmp(gf_status_name(GF_ERROR_INTERNAL), "GF_ERROR_INTERNAL") == 0);
  REQUIRE(strcmp(gf_status_name((gf_status)99), "not a gf_status") == 0);

  OK(gf_init(MPI_COMM_WORLD, NULL, &communicator));
  wrong_communicators();
  null_arguments();
  null_sparse_pools();
  wrong_sparse_pools();
  null_top_k_pools();
  wrong_top_k_pools();
  wrong_optimizers();
  wrong_values();
  wrong_options();
  different_calls();
  waits_that_pass();
  messages_belong_to_threads();

  float one = 1;  // nothing of all that has done harm
  OK(gf_allreduce(communicator, &one, &one, 1, GF_FLOAT32, GF_SUM, NULL));
  REQUIRE(one == (float)gf_size(communicator));
  OK(gf_close(communicator));
  gf_communicator_free(communicator);
  MPI_Finalize();
  return 0;
}

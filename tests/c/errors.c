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

  gf_memory* memory;
  REFUSED(gf_memory_allocate(NULL, 64, &memory), GF_ERROR_VALUE, "communicator is NULL");
  REFUSED(gf_memory_allocate(communicator, 64, NULL), GF_ERROR_VALUE, "memory is NULL");
  REQUIRE(gf_memory_data(NULL) == NULL && gf_memory_bytes(NULL) == 0);
  gf_memory_free(NULL);

  gf_pool* pool;
  REFUSED(gf_pool_create(NULL, ones, 1, GF_FLOAT32, NULL, &pool), GF_ERROR_VALUE, "communicator is NULL");
  REFUSED(gf_pool_create(communicator, NULL, 1, GF_FLOAT32, NULL, &pool), GF_ERROR_VALUE, "counts is NULL");
  REFUSED(gf_pool_create(communicator, ones, 1, GF_FLOAT32, NULL, NULL), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_pool_ready(NULL, 0), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_pool_ready_all(NULL), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_pool_wait(NULL, -1), GF_ERROR_VALUE, "pool is NULL");
  REFUSED(gf_pool_abandon(NULL), GF_ERROR_VALUE, "pool is NULL");
  gf_pool_options pool_options = GF_POOL_OPTIONS_INIT;
  pool_options.size = 3;
  REFUSED(gf_pool_create(communicator, ones, 1, GF_FLOAT32, &pool_options, &pool), GF_ERROR_VALUE,
          "the size of a gf_pool_options is 3");
  REQUIRE(gf_pool_tensor(NULL, 0) == NULL && gf_pool_tensors(NULL) == 0 && gf_pool_bytes(NULL) == 0);
  gf_pool_free(NULL);

  REFUSED(gf_send(NULL, x, 1, GF_FLOAT32, 0), GF_ERROR_VALUE, "communicator is NULL");
  REFUSED(gf_recv(NULL, x, 1, GF_FLOAT32, 0), GF_ERROR_VALUE, "communicator is NULL");
  REFUSED(gf_send(communicator, NULL, 1, GF_FLOAT32, 0), GF_ERROR_VALUE, "data is NULL");
  REFUSED(gf_recv(communicator, NULL, 1, GF_FLOAT32, 0), GF_ERROR_VALUE, "data is NULL");
  REQUIRE(gf_reduce_scatter_count(NULL, 8) == 0);
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
  REFUSED(gf_allreduce(communicator, x, x, 4, GF_FLOAT32, GF_SUM, &options), GF_ERROR_TYPE, "travel as int8");
  options.wire = GF_FLOAT16;
  REFUSED(gf_broadcast(communicator, x, 4, GF_FLOAT32, 0, &options), GF_ERROR_VALUE, "no wire dtype");
  options.wire = GF_NO_DTYPE;
  options.algorithm = (gf_algorithm)99;
  REFUSED(gf_allreduce(communicator, x, x, 4, GF_FLOAT32, GF_SUM, &options), GF_ERROR_VALUE, "99 is not");
  options.algorithm = GF_ALGORITHM_RING;
  REFUSED(gf_broadcast(communicator, x, 4, GF_FLOAT32, 0, &options), GF_ERROR_VALUE, "does not serve broadcast");
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

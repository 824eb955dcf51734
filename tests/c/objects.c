// Parts of the ranks, tensors between two ranks, node memory, the pool; and the order in which things end.
#include <math.h>

#include "expect.h"

static int rank, size;

static void places(gf_communicator* communicator) {
  int world_rank, world_size;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  REQUIRE(rank == world_rank && size == world_size);

  const char* const text = getenv("GRADIENTFLOW_NODE_SIZE");
  const int node_size = text == NULL || atoi(text) == 0 ? size : atoi(text);
  const int begin = rank / node_size * node_size, end = begin + node_size < size ? begin + node_size : size;
  REQUIRE(gf_node(communicator) == rank / node_size);
  REQUIRE(gf_nodes(communicator) == (size + node_size - 1) / node_size);
  REQUIRE(gf_local_rank(communicator) == rank - begin && gf_local_size(communicator) == end - begin);
}

static void parts(gf_communicator* whole) {
  gf_communicator* part;
  OK(gf_split(whole, rank % 2, -rank, &part));  // in reversed order
  const int of_color = (size + 1 - rank % 2) / 2;
  REQUIRE(gf_size(part) == of_color && gf_rank(part) == of_color - 1 - rank / 2);
  float x = (float)rank;
  OK(gf_allreduce(part, &x, &x, 1, GF_FLOAT32, GF_SUM, NULL));
  REQUIRE(x == (float)(of_color * (of_color - 1) + of_color * (rank % 2)));
  OK(gf_close(part));
  gf_communicator_free(part);

  OK(gf_split(whole, rank == 0 ? 3 : -1, 0, &part));
  REQUIRE((part != NULL) == (rank == 0));
  if (part != NULL) {
    REQUIRE(gf_size(part) == 1);
    OK(gf_barrier(part));
    gf_communicator_free(part);  // without gf_close
  }
}

static void between_two(gf_communicator* communicator) {
  enum { count = 100000 };
  if (size == 1) return;
  int32_t* const x = array_of(count, sizeof(int32_t));
  const int last = size - 1;
  if (rank == 0) {
    for (int i = 0; i < count; ++i) x[i] = i;
    OK(gf_send(communicator, x, count, GF_INT32, last));
    OK(gf_send(communicator, x, 5, GF_INT32, last));
    OK(gf_send(communicator, x, 7, GF_INT32, last));
    OK(gf_send(communicator, NULL, 0, GF_INT8, last));
  } else if (rank == last) {
    OK(gf_recv(communicator, x, count, GF_INT32, 0));
    for (int i = 0; i < count; ++i) REQUIRE(x[i] == i);
    REFUSED(gf_recv(communicator, x, 5, GF_FLOAT32, 0), GF_ERROR_MISMATCH, "sent 5 int32");
    x[6] = 0;
    OK(gf_recv(communicator, x, 7, GF_INT32, 0));
    REQUIRE(x[6] == 6);
    OK(gf_recv(communicator, NULL, 0, GF_INT8, 0));
  }
  free(x);
}

static void node_memory(gf_communicator* communicator) {
  enum { count = 30000 };
  gf_memory *memory, *empty;
  OK(gf_memory_allocate(communicator, count * sizeof(double), &memory));
  OK(gf_memory_allocate(communicator, 0, &empty));
  double* const x = gf_memory_data(memory);
  REQUIRE(gf_memory_bytes(memory) == count * sizeof(double) && gf_memory_bytes(empty) == 0);
  REQUIRE(x != NULL && (uintptr_t)x % 64 == 0 && x[0] == 0 && x[count - 1] == 0);
  for (int i = 0; i < count; ++i) x[i] = rank + i;
  OK(gf_allreduce(communicator, x, x, count, GF_FLOAT64, GF_SUM, NULL));
  for (int i = 0; i < count; ++i) REQUIRE(x[i] == size * (size - 1) / 2 + (double)size * i);
  gf_memory_free(empty);
  gf_memory_free(memory);
  REFUSED(gf_memory_allocate(communicator, (size_t)-1, &memory), GF_ERROR_VALUE, "node memory");
  REQUIRE(memory == NULL);
}

static void pools(gf_communicator* communicator) {
  const size_t counts[] = {100000, 0, 3};
  gf_pool *pool, *empty;
  OK(gf_pool_create(communicator, counts, 3, GF_FLOAT32, NULL, &pool));
  OK(gf_pool_create(communicator, NULL, 0, GF_FLOAT64, NULL, &empty));
  REQUIRE(gf_pool_tensors(pool) == 3 && gf_pool_tensors(empty) == 0);
  REQUIRE(gf_pool_bytes(pool) >= 100003 * sizeof(float) && gf_pool_bytes(empty) == 0);
  REQUIRE(gf_pool_tensor(pool, 3) == NULL && gf_pool_tensor(empty, 0) == NULL);
  for (int step = 0; step < 3; ++step) {
    for (size_t t = 0; t < 3; ++t) {
      float* const gradient = gf_pool_tensor(pool, t);
      REQUIRE((uintptr_t)gradient % 64 == 0);
      for (size_t i = 0; i < counts[t]; ++i) gradient[i] = (float)(2 * rank + step);
      OK(gf_pool_ready(pool, t));
    }
    REFUSED(gf_pool_ready(pool, 1), GF_ERROR_VALUE, "already ready");
    REFUSED(gf_pool_ready(pool, 3), GF_ERROR_VALUE, "not in the pool");
    OK(gf_pool_wait(pool, -1));
    for (size_t t = 0; t < 3; ++t) {
      const float* const gradient = gf_pool_tensor(pool, t);
      for (size_t i = 0; i < counts[t]; ++i) REQUIRE(gradient[i] == (float)(size - 1 + step));
    }
  }
  gf_pool_options options = GF_POOL_OPTIONS_INIT;
  options.fusion_threshold = 0;
  options.wire = GF_FLOAT16;
  gf_pool* lazy;
  OK(gf_pool_create(communicator, counts, 3, GF_FLOAT32, &options, &lazy));
  float* const first = gf_pool_tensor(lazy, 0);
  float* const last = gf_pool_tensor(lazy, 2);
  for (int step = 0; step < 3; ++step) {
    first[99999] = last[2] = (float)(2 * rank);
    OK(gf_pool_ready(lazy, 2));
    if (step == 1) {  // what is not ready counts as zeros
      OK(gf_pool_rollback(lazy));
      REQUIRE(first[99999] == 0);
    } else {
      OK(gf_pool_ready_all(lazy));
      OK(gf_pool_wait(lazy, 60));
      REQUIRE(first[99999] == (float)(size - 1));
    }
    REQUIRE(last[2] == (float)(size - 1));
  }
  gf_pool_free(lazy);
  REFUSED(gf_pool_wait(empty, NAN), GF_ERROR_VALUE, "not a number");
  OK(gf_pool_wait(empty, -1));
  gf_pool_free(empty);
  gf_pool_free(pool);
}

static void handles_freed_early(gf_communicator* communicator) {
  enum { count = 50000, calls = 20 };
  float* const x = array_of(count * calls, sizeof(float));
  for (int i = 0; i < count * calls; ++i) x[i] = 1;
  for (int k = 0; k < calls; ++k) {
    gf_handle* handle;
    OK(gf_allreduce_async(communicator, x + k * count, x + k * count, count, GF_FLOAT32, GF_SUM, NULL, &handle));
    gf_handle_free(handle);
  }
  OK(gf_close(communicator));  // waits for them
  for (int i = 0; i < count * calls; ++i) REQUIRE(x[i] == (float)size);
  free(x);
}

// MPI's own, made and thrown away by the program.
static gf_communicator* of_another_mpi_communicator(void) {
  MPI_Comm mpi;
  gf_communicator* communicator;
  MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &mpi);
  OK(gf_init(mpi, NULL, &communicator));
  MPI_Comm_free(&mpi);
  REQUIRE(gf_rank(communicator) == size - 1 - rank);
  OK(gf_barrier(communicator));
  return communicator;
}

int main(int argc, char** argv) {
  const int by_hand = argc > 1 && strcmp(argv[1], "MPI_Init") == 0;  // else by gf_init
  if (by_hand) MPI_Init(&argc, &argv);

  gf_communicator *whole, *freed, *closed, *open;
  OK(gf_init(MPI_COMM_WORLD, NULL, &whole));
  int provided;
  MPI_Query_thread(&provided);
  REQUIRE(by_hand || provided == MPI_THREAD_MULTIPLE);
  rank = gf_rank(whole);
  size = gf_size(whole);
  places(whole);
  parts(whole);
  between_two(whole);
  node_memory(whole);
  pools(whole);

  // What is left at the end, of communicators in every state.
  OK(gf_init(MPI_COMM_WORLD, NULL, &freed));
  OK(gf_init(MPI_COMM_WORLD, NULL, &closed));
  open = of_another_mpi_communicator();
  gf_memory* memory;
  gf_pool *pool, *other_pool;
  gf_sparse_pool* sparse;
  gf_handle* handle = NULL;
  const size_t counts[] = {1000};
  OK(gf_memory_allocate(freed, 4096, &memory));
  OK(gf_pool_create(freed, counts, 1, GF_FLOAT32, NULL, &pool));
  OK(gf_pool_create(closed, counts, 1, GF_FLOAT32, NULL, &other_pool));
  OK(gf_sparse_pool_create(freed, counts, 1, GF_FLOAT32, NULL, &sparse));
  const int in_background = !by_hand || gf_nodes(whole) == 1;
  if (in_background) {
    OK(gf_barrier_async(closed, &handle));
    OK(gf_handle_wait(handle, -1));
    handles_freed_early(whole);
  } else {
    REFUSED(gf_barrier_async(closed, &handle), GF_ERROR_VALUE, "call MPI_Init_thread with MPI_THREAD_MULTIPLE");
  }
  OK(gf_close(closed));
  OK(gf_close(closed));
  OK(gf_close(whole));
  MPI_Barrier(MPI_COMM_WORLD);
  gf_communicator_free(freed);
  REFUSED(gf_barrier(closed), GF_ERROR_CLOSED, "closed");
  REFUSED(gf_pool_wait(pool, -1), GF_ERROR_CLOSED, "closed");
  REFUSED(gf_sparse_pool_wait(sparse, 1, -1), GF_ERROR_CLOSED, "closed");
  ((char*)gf_memory_data(memory))[4095] = 1;
  ((float*)gf_pool_tensor(pool, 0))[999] = 1;
  ((float*)gf_sparse_pool_tensor(sparse, 0))[999] = 1;

  MPI_Finalize();
  REQUIRE(gf_rank(closed) == rank);
  REFUSED(gf_init(MPI_COMM_WORLD, NULL, &freed), GF_ERROR_CLOSED, "MPI has been finalized");
  REFUSED(gf_split(open, 0, 0, &freed), GF_ERROR_CLOSED, "MPI has been finalized");
  if (gf_nodes(open) > 1) {
    REFUSED(gf_barrier(open), GF_ERROR_CLOSED, "MPI has been finalized");
  }
  if (in_background) OK(gf_handle_wait(handle, 0));
  gf_communicator_free(open);
  gf_memory_free(memory);
  gf_communicator_free(whole);
  gf_pool_free(pool);
  gf_pool_free(other_pool);
  gf_sparse_pool_free(sparse);
  gf_communicator_free(closed);
  gf_handle_free(handle);
  return 0;
}

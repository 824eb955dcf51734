// Every collective, waited for and in the background, with several sizes, algorithms and wire dtypes, exactly.
#include "expect.h"

static int rank, size;
static gf_communicator* communicator;

// Small whole numbers: every order of addition gives the same, also as bfloat16.
static float value(int of_rank, size_t i) { return (float)((of_rank + 1) * (int)(i % 13)); }
static float sum(size_t i) { return (float)(size * (size + 1) / 2 * (int)(i % 13)); }

static float* filled(size_t count) {
  float* const x = array_of(count, sizeof(float));
  for (size_t i = 0; i < count; ++i) x[i] = value(rank, i);
  return x;
}

// The call itself, or started and waited for.
#define CALL(background, name, ...)                \
  do {                                             \
    if (background) {                              \
      gf_handle* handle;                           \
      int done = 0;                                \
      OK(gf_##name##_async(__VA_ARGS__, &handle)); \
      OK(gf_handle_wait(handle, -1));              \
      OK(gf_handle_test(handle, &done));           \
      REQUIRE(done == 1);                          \
      gf_handle_free(handle);                      \
    } else {                                       \
      OK(gf_##name(__VA_ARGS__));                  \
    }                                              \
  } while (0)

static void allreduce(size_t count, const gf_call_options* options, int background) {
  float* const x = filled(count);
  float* const y = array_of(count, sizeof(float));
  CALL(background, allreduce, communicator, x, y, count, GF_FLOAT32, GF_SUM, options);
  for (size_t i = 0; i < count; ++i) REQUIRE(y[i] == sum(i) && x[i] == value(rank, i));
  CALL(background, allreduce, communicator, x, x, count, GF_FLOAT32, GF_SUM, options);
  for (size_t i = 0; i < count; ++i) REQUIRE(x[i] == sum(i));
  free(x);
  free(y);
}

static void reduce_and_broadcast(size_t count, const gf_call_options* options, int background) {
  const int root = size - 1;
  float* const x = filled(count);
  float* const y = rank == root ? array_of(count, sizeof(float)) : NULL;
  CALL(background, reduce, communicator, x, y, count, GF_FLOAT32, GF_MAX, root, options);
  for (size_t i = 0; y != NULL && i < count; ++i) REQUIRE(y[i] == value(size - 1, i));
  for (size_t i = 0; i < count; ++i) REQUIRE(x[i] == value(rank, i));
  CALL(background, reduce, communicator, x, x, count, GF_FLOAT32, GF_SUM, root, options);
  for (size_t i = 0; i < count; ++i) REQUIRE(x[i] == (rank == root ? sum(i) : value(rank, i)));
  CALL(background, broadcast, communicator, x, count, GF_FLOAT32, root, options);
  for (size_t i = 0; i < count; ++i) REQUIRE(x[i] == sum(i));
  free(x);
  free(y);
}

static void allgathers(size_t count, const gf_call_options* options, int background) {
  float* const x = filled(count);
  float* const y = array_of(count * (size_t)size, sizeof(float));
  CALL(background, allgather, communicator, x, y, count, GF_FLOAT32, options);
  for (int r = 0; r < size; ++r) {
    for (size_t i = 0; i < count; ++i) REQUIRE(y[(size_t)r * count + i] == value(r, i));
  }
  free(y);

  // Rank r has count / (r + 1) elements, and rank 1 none.
  size_t* const counts = array_of((size_t)size, sizeof(size_t));
  size_t all = 0;
  for (int r = 0; r < size; ++r) {
    counts[r] = r == 1 ? 0 : count / (size_t)(r + 1);
    all += counts[r];
  }
  float* const z = array_of(all, sizeof(float));
  CALL(background, allgatherv, communicator, counts[rank] > 0 ? x : NULL, z, counts, GF_FLOAT32, options);
  size_t k = 0;
  for (int r = 0; r < size; ++r) {
    for (size_t i = 0; i < counts[r]; ++i) REQUIRE(z[k++] == value(r, i));
  }
  free(x);
  free(z);
  free(counts);
}

static void reduce_scatter(size_t count, const gf_call_options* options, int background) {
  const size_t extra = count % (size_t)size, me = (size_t)rank;
  const size_t begin = count / (size_t)size * me + (me < extra ? me : extra);
  const size_t mine = gf_reduce_scatter_count(communicator, count);
  REQUIRE(mine == count / (size_t)size + (me < extra ? 1 : 0));
  float* const x = filled(count);
  float* const y = array_of(mine, sizeof(float));
  CALL(background, reduce_scatter, communicator, x, y, count, GF_FLOAT32, GF_SUM, options);
  for (size_t i = 0; i < mine; ++i) REQUIRE(y[i] == sum(begin + i));
  free(x);
  free(y);
}

static void blocks(size_t count, const gf_call_options* options, int background) {
  const size_t all = count * (size_t)size;
  const int root = size / 2;
  float* const x = filled(all);
  float* const y = array_of(all, sizeof(float));
  CALL(background, alltoall, communicator, x, y, count, GF_FLOAT32, options);
  for (int r = 0; r < size; ++r) {
    for (size_t i = 0; i < count; ++i) REQUIRE(y[(size_t)r * count + i] == value(r, (size_t)rank * count + i));
  }
  CALL(background, gather, communicator, x, rank == root ? y : NULL, count, GF_FLOAT32, root, options);
  for (int r = 0; rank == root && r < size; ++r) {
    for (size_t i = 0; i < count; ++i) REQUIRE(y[(size_t)r * count + i] == value(r, i));
  }
  float* const z = array_of(count, sizeof(float));
  CALL(background, scatter, communicator, rank == root ? x : NULL, z, count, GF_FLOAT32, root, options);
  for (size_t i = 0; i < count; ++i) REQUIRE(z[i] == value(root, (size_t)rank * count + i));
  free(x);
  free(y);
  free(z);
}

static void all_of(size_t count, const gf_call_options* options) {
  for (int background = 0; background < 2; ++background) {
    allreduce(count, options, background);
    reduce_and_broadcast(count, options, background);
    allgathers(count, options, background);
    reduce_scatter(count, options, background);
    blocks(count, options, background);
    CALL(background, barrier, communicator);
  }
}

static void nothing_at_all(void) {
  const size_t counts[64] = {0};
  OK(gf_allreduce(communicator, NULL, NULL, 0, GF_FLOAT32, GF_SUM, NULL));
  OK(gf_reduce(communicator, NULL, NULL, 0, GF_FLOAT32, GF_SUM, 0, NULL));
  OK(gf_broadcast(communicator, NULL, 0, GF_FLOAT32, 0, NULL));
  OK(gf_allgather(communicator, NULL, NULL, 0, GF_FLOAT32, NULL));
  OK(gf_allgatherv(communicator, NULL, NULL, counts, GF_FLOAT32, NULL));
  OK(gf_reduce_scatter(communicator, NULL, NULL, 0, GF_FLOAT32, GF_SUM, NULL));
  OK(gf_alltoall(communicator, NULL, NULL, 0, GF_FLOAT32, NULL));
  OK(gf_gather(communicator, NULL, NULL, 0, GF_FLOAT32, 0, NULL));
  OK(gf_scatter(communicator, NULL, NULL, 0, GF_FLOAT32, 0, NULL));
}

static void dtypes_and_ops(void) {
  const double mean = (size - 1) / 2.0;
  double d = rank;
  OK(gf_allreduce(communicator, &d, &d, 1, GF_FLOAT64, GF_MEAN, NULL));
  REQUIRE(d == mean);
  int8_t i8 = (int8_t)(rank + 1);
  OK(gf_allreduce(communicator, &i8, &i8, 1, GF_INT8, GF_MIN, NULL));
  REQUIRE(i8 == 1);
  uint8_t u8 = (uint8_t)(rank + 1);
  OK(gf_allreduce(communicator, &u8, &u8, 1, GF_UINT8, GF_MAX, NULL));
  REQUIRE(u8 == size);
  int32_t i32 = 2;
  OK(gf_allreduce(communicator, &i32, &i32, 1, GF_INT32, GF_PROD, NULL));
  REQUIRE(i32 == 1 << size);
  int64_t i64 = (int64_t)1 << 40;
  OK(gf_allreduce(communicator, &i64, &i64, 1, GF_INT64, GF_SUM, NULL));
  REQUIRE(i64 == size * ((int64_t)1 << 40));
  uint8_t any = rank == 0;
  OK(gf_allreduce(communicator, &any, &any, 1, GF_BOOL, GF_MAX, NULL));
  REQUIRE(any == 1);
  uint16_t half = 0x3c00, brain = 0x3f80;  // 1
  OK(gf_allreduce(communicator, &half, &half, 1, GF_FLOAT16, GF_MAX, NULL));
  OK(gf_allreduce(communicator, &brain, &brain, 1, GF_BFLOAT16, GF_PROD, NULL));
  REQUIRE(half == 0x3c00 && brain == 0x3f80);
}

static void wire(void) {
  enum { count = 5000 };
  const gf_dtype wires[] = {GF_FLOAT16, GF_BFLOAT16, GF_FLOAT32};  // FLOAT32 rounds nothing
  for (size_t k = 0; k < 3; ++k) {
    gf_call_options options = GF_CALL_OPTIONS_INIT;
    options.wire = wires[k];
    allreduce(count, &options, 0);
    allreduce(count, &options, 1);
  }

  // In FLOAT8_E4M3 the largest value of a message is exact.
  float* const equal = filled(count);
  gf_call_options narrow = GF_CALL_OPTIONS_INIT;
  narrow.wire = GF_FLOAT8_E4M3;
  for (size_t i = 0; i < count; ++i) equal[i] = 3;
  OK(gf_allreduce(communicator, equal, equal, count, GF_FLOAT32, GF_SUM, &narrow));
  for (size_t i = 0; i < count; ++i) REQUIRE(equal[i] == 3.0F * (float)size);
  free(equal);

  // 1e6 is no float16: infinite where it travels between nodes, untouched inside one.
  float* const x = filled(count);
  x[3] = x[4000] = 1e6F;
  gf_call_options options = GF_CALL_OPTIONS_INIT;
  options.wire = GF_FLOAT16;
  gf_handle* handle;
  int64_t nonfinite = 7;
  OK(gf_allreduce_async(communicator, x, x, count, GF_FLOAT32, GF_MAX, &options, &handle));
  OK(gf_handle_wait(handle, 60));
  OK(gf_handle_nonfinite(handle, &nonfinite));
  REQUIRE(nonfinite == (gf_nodes(communicator) > 1 ? 2 : -1));
  gf_handle_free(handle);
  free(x);
}

int main(void) {
  const gf_setting settings[] = {{"timeout", "60"}, {NULL, NULL}};
  OK(gf_init(MPI_COMM_WORLD, settings, &communicator));
  rank = gf_rank(communicator);
  size = gf_size(communicator);

  const size_t counts[] = {0, 1, 7, 1009, 70001};
  for (size_t i = 0; i < sizeof counts / sizeof *counts; ++i) {
    all_of(counts[i], NULL);
  }
  gf_call_options options = GF_CALL_OPTIONS_INIT;
  options.algorithm = GF_ALGORITHM_MPI;
  all_of(1009, &options);
  if (gf_nodes(communicator) == 1) {
    options.algorithm = GF_ALGORITHM_SHARED;
    all_of(1009, &options);
  }
  const gf_algorithm messages[] = {GF_ALGORITHM_RING, GF_ALGORITHM_HIERARCHICAL, GF_ALGORITHM_HIERARCHICAL_LANES,
                                   GF_ALGORITHM_RECURSIVE_DOUBLING};
  for (size_t i = 0; i < sizeof messages / sizeof *messages; ++i) {
    options.algorithm = messages[i];
    allreduce(1009, &options, 0);
    allreduce(1009, &options, 1);
  }
  nothing_at_all();
  dtypes_and_ops();
  wire();

  OK(gf_close(communicator));
  gf_communicator_free(communicator);
  MPI_Finalize();
  return 0;
}

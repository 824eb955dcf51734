// Waiting for several calls: for all of them, and for whichever ends first.
#include "expect.h"

enum { calls = 20, count = 3000 };

static gf_communicator *first, *second;
static float x[calls][count];
static gf_handle* handles[calls + 1];

// Every second one on the other communicator; the last entry stays NULL.
static void start(void) {
  for (int k = 0; k < calls; ++k) {
    for (int i = 0; i < count; ++i) x[k][i] = (float)k;
    gf_communicator* const communicator = k % 2 == 0 ? first : second;
    OK(gf_allreduce_async(communicator, x[k], x[k], count, GF_FLOAT32, GF_SUM, NULL, &handles[k]));
  }
  handles[calls] = NULL;
}

static void is_reduced(int k) {
  for (int i = 0; i < count; ++i) REQUIRE(x[k][i] == (float)(k * gf_size(first)));
}

static void finish(void) {
  for (int k = 0; k < calls; ++k) {
    gf_handle_free(handles[k]);
    handles[k] = NULL;
  }
}

static void all(void) {
  start();
  OK(gf_wait_all(handles, calls + 1, 100));
  for (int k = 0; k < calls; ++k) {
    int done = 0;
    OK(gf_handle_test(handles[k], &done));
    REQUIRE(done == 1);
    is_reduced(k);
  }
  OK(gf_wait_all(handles, calls + 1, 0));  // again
  finish();
  OK(gf_wait_all(handles, calls + 1, -1));
  OK(gf_wait_all(NULL, 0, -1));
}

static void any(void) {
  start();
  int seen[calls] = {0};
  size_t index = 0;
  for (int k = 0; k < calls; ++k) {
    OK(gf_wait_any(handles, calls + 1, k % 2 == 0 ? -1 : 100, &index));
    REQUIRE(index < calls && !seen[index]);
    seen[index] = 1;
    is_reduced((int)index);
    gf_handle_free(handles[index]);
    handles[index] = NULL;
  }
  index = 0;
  OK(gf_wait_any(handles, calls + 1, -1, &index));
  REQUIRE(index == calls + 1);
  OK(gf_wait_any(NULL, 0, -1, &index));
  REQUIRE(index == 0);
}

// Where a rank is late nothing ends in time, and goes on; where calls do not match, that is how they end.
static void late_and_wrong(void) {
  const int rank = gf_rank(first), last = gf_size(first) - 1;
  if (last == 0) return;
  float y[8] = {0};
  size_t index = 7;
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank != last) {
    OK(gf_barrier_async(first, &handles[0]));
    OK(gf_barrier_async(second, &handles[1]));
    REFUSED(gf_wait_all(handles, 2, 0.01), GF_ERROR_TIMEOUT, "2 of 2 calls were not done within 0.01 s");
    REFUSED(gf_wait_any(handles, 2, 0, &index), GF_ERROR_TIMEOUT, "no call was done within 0 s; they go on");
    REQUIRE(index == 2);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == last) {
    OK(gf_barrier_async(first, &handles[0]));
    OK(gf_barrier_async(second, &handles[1]));
  }
  OK(gf_wait_all(handles, 2, -1));
  finish();

  OK(gf_barrier_async(first, &handles[0]));
  OK(gf_allreduce_async(second, y, y, rank == last ? 8 : 4, GF_FLOAT32, GF_SUM, NULL, &handles[1]));
  OK(gf_allreduce_async(second, y, y, 4, rank == last ? GF_FLOAT32 : GF_INT32, GF_SUM, NULL, &handles[2]));
  REFUSED(gf_wait_all(handles, 3, -1), GF_ERROR_MISMATCH, "of 8 float32");  // the first that failed
  OK(gf_handle_wait(handles[0], 0));
  REFUSED(gf_handle_wait(handles[2], 0), GF_ERROR_MISMATCH, "of 4 int32");
  gf_handle_free(handles[0]);
  handles[0] = NULL;
  REFUSED(gf_wait_any(handles, 3, -1, &index), GF_ERROR_MISMATCH, "of 8 float32");
  REQUIRE(index == 1);
  finish();
}

int main(void) {
  OK(gf_init(MPI_COMM_WORLD, NULL, &first));
  OK(gf_init(MPI_COMM_WORLD, NULL, &second));
  all();
  any();
  late_and_wrong();
  OK(gf_close(second));
  OK(gf_close(first));
  gf_communicator_free(second);
  gf_communicator_free(first);
  MPI_Finalize();
  return 0;
}

// Prepared calls: every kind of them, started again and again, several under way, and what is refused.
#include "expect.h"

enum { count = 6, large = 50000 };

static gf_communicator* communicator;
static int rank, size;

static void twice(gf_request* request, float* x, const float* result, float wanted, float wanted_then) {
  for (int i = 0; i < count; ++i) x[i] = (float)(rank + 1);
  OK(gf_request_start(request));
  OK(gf_request_wait(request, -1));
  if (result != NULL) REQUIRE(result[0] == wanted);
  for (int i = 0; i < count; ++i) x[i] = (float)(10 * (rank + 1));
  OK(gf_request_start(request));
  OK(gf_request_wait(request, 50));
  if (result != NULL) REQUIRE(result[0] == wanted_then);
  int64_t nonfinite = 0;
  OK(gf_request_nonfinite(request, &nonfinite));
  REQUIRE(nonfinite == -1);
  gf_request_free(request);
}

static void kinds(void) {
  const float total = (float)(size * (size + 1) / 2);
  const int last = size - 1;
  const size_t part = gf_reduce_scatter_count(communicator, count);
  float* const x = array_of((size_t)size * count, sizeof(float));
  float* const y = array_of((size_t)size * count, sizeof(float));
  size_t* const counts = array_of((size_t)size, sizeof(size_t));
  for (int r = 0; r < size; ++r) counts[r] = count;
  gf_request* request;
  OK(gf_allreduce_init(communicator, x, y, count, GF_FLOAT32, GF_SUM, NULL, &request));
  twice(request, x, y, total, 10 * total);
  OK(gf_reduce_init(communicator, x, y, count, GF_FLOAT32, GF_SUM, last, NULL, &request));
  twice(request, x, rank == last ? y : NULL, total, 10 * total);
  OK(gf_broadcast_init(communicator, x, count, GF_FLOAT32, last, NULL, &request));
  twice(request, x, x, (float)size, (float)(10 * size));
  OK(gf_allgather_init(communicator, x, y, count, GF_FLOAT32, NULL, &request));
  twice(request, x, y + last * count, (float)size, (float)(10 * size));
  OK(gf_allgatherv_init(communicator, x, y, counts, GF_FLOAT32, NULL, &request));
  counts[0] = 0;  // copied
  twice(request, x, y + last * count, (float)size, (float)(10 * size));
  OK(gf_reduce_scatter_init(communicator, x, y, count, GF_FLOAT32, GF_SUM, NULL, &request));
  twice(request, x, part > 0 ? y : NULL, total, 10 * total);
  OK(gf_alltoall_init(communicator, x, y, 1, GF_FLOAT32, NULL, &request));
  twice(request, x, size <= count ? y + last : NULL, (float)size, (float)(10 * size));
  OK(gf_gather_init(communicator, x, y, count, GF_FLOAT32, 0, NULL, &request));
  twice(request, x, rank == 0 ? y + last * count : NULL, (float)size, (float)(10 * size));
  OK(gf_scatter_init(communicator, x, y, 1, GF_FLOAT32, last, NULL, &request));
  twice(request, x, y, (float)size, (float)(10 * size));
  OK(gf_barrier_init(communicator, &request));
  twice(request, x, NULL, 0, 0);
  free(counts);
  free(y);
  free(x);
}

// In the order in which they were started, whoever is waited for first.
static void several(void) {
  enum { calls = 8 };
  float* const x = array_of((size_t)calls * large, sizeof(float));
  gf_request* requests[calls];
  for (int k = 0; k < calls; ++k) {
    const size_t length = k % 2 == 0 ? count : large;
    OK(gf_allreduce_init(communicator, x + k * large, x + k * large, length, GF_FLOAT32, GF_MAX, NULL, &requests[k]));
  }
  for (int turn = 0; turn < 20; ++turn) {
    for (int k = 0; k < calls; ++k) {
      x[k * large] = (float)(rank + k);
      OK(gf_request_start(requests[k]));
    }
    OK(gf_barrier(communicator));
    for (int k = calls - 1; k >= 0; --k) {
      int done = 0;
      OK(gf_request_test(requests[k], &done));
      REQUIRE(done == 1);
      OK(gf_request_wait(requests[k], 0));
      REQUIRE(x[k * large] == (float)(size - 1 + k));
    }
  }
  for (int k = 0; k < calls; ++k) gf_request_free(requests[k]);
  free(x);
}

static void refused(void) {
  float x[count] = {0};
  gf_request* request;
  REFUSED(gf_allreduce_init(communicator, x, x, count, GF_BOOL, GF_SUM, NULL, &request), GF_ERROR_TYPE, "bool");
  REQUIRE(request == NULL);
  REFUSED(gf_allreduce_init(NULL, x, x, count, GF_FLOAT32, GF_SUM, NULL, &request), GF_ERROR_VALUE, "communicator");
  REFUSED(gf_request_start(NULL), GF_ERROR_VALUE, "request is NULL");
  OK(gf_allreduce_init(communicator, x, x, count, GF_FLOAT32, GF_SUM, NULL, &request));
  REFUSED(gf_request_wait(request, -1), GF_ERROR_VALUE, "has not been started");
  OK(gf_request_start(request));
  REFUSED(gf_request_start(request), GF_ERROR_VALUE, "has been started already");
  gf_request_free(request);  // it is waited for
  gf_request_free(NULL);
  if (size > 1) {
    OK(gf_allreduce_init(communicator, x, x, rank == 0 ? 2 : 3, GF_FLOAT32, GF_SUM, NULL, &request));
    OK(gf_request_start(request));
    REFUSED(gf_request_wait(request, -1), GF_ERROR_MISMATCH, "allreduce of 2 float32");
    gf_request_free(request);
  }
}

int main(void) {
  OK(gf_init(MPI_COMM_WORLD, NULL, &communicator));
  rank = gf_rank(communicator);
  size = gf_size(communicator);
  kinds();
  several();
  refused();
  float x[count] = {0};
  gf_request* request;
  OK(gf_allreduce_init(communicator, x, x, count, GF_FLOAT32, GF_SUM, NULL, &request));
  OK(gf_close(communicator));
  REFUSED(gf_request_start(request), GF_ERROR_CLOSED, "the communicator is closed");
  gf_communicator_free(communicator);
  MPI_Finalize();
  gf_request_free(request);
  return 0;
}

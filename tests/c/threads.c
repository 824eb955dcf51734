// Two threads in every rank, each with calls in the background on a communicator of its own, and both waiting for the
// calls of a third.
#include <pthread.h>

#include "expect.h"

enum { calls = 50, count = 3000 };

static gf_handle* shared[calls];

static void* work(void* of_this_thread) {
  gf_communicator* const communicator = of_this_thread;
  const float size = (float)gf_size(communicator);
  float* const x = array_of(count * calls, sizeof(float));
  gf_handle* handles[calls];
  for (int k = 0; k < calls; ++k) {
    for (int i = 0; i < count; ++i) x[k * count + i] = (float)(k + 1);
    OK(gf_allreduce_async(communicator, x + k * count, x + k * count, count, GF_FLOAT32, GF_SUM, NULL, &handles[k]));
    if (k % 5 == 0) OK(gf_barrier(communicator));
  }
  for (int k = calls - 1; k >= 0; --k) {
    OK(gf_handle_wait(handles[k], 100));
    OK(gf_handle_wait(shared[k], 100));
    gf_handle_free(handles[k]);
    for (int i = 0; i < count; ++i) REQUIRE(x[k * count + i] == (float)(k + 1) * size);
  }
  free(x);
  return NULL;
}

int main(void) {
  gf_communicator* communicators[3];
  OK(gf_init(MPI_COMM_WORLD, NULL, &communicators[0]));
  OK(gf_split(communicators[0], 0, 0, &communicators[1]));
  OK(gf_init(MPI_COMM_WORLD, NULL, &communicators[2]));
  int64_t* const y = array_of(calls, sizeof(int64_t));
  for (int k = 0; k < calls; ++k) {
    y[k] = k;
    OK(gf_allreduce_async(communicators[2], y + k, y + k, 1, GF_INT64, GF_MAX, NULL, &shared[k]));
  }
  pthread_t threads[2];
  for (int t = 0; t < 2; ++t) REQUIRE(pthread_create(&threads[t], NULL, work, communicators[t]) == 0);
  for (int t = 0; t < 2; ++t) REQUIRE(pthread_join(threads[t], NULL) == 0);
  for (int k = 0; k < calls; ++k) {
    REQUIRE(y[k] == k);
    gf_handle_free(shared[k]);
  }
  free(y);
  for (int c = 2; c >= 0; --c) {
    OK(gf_close(communicators[c]));
    gf_communicator_free(communicators[c]);
  }
  MPI_Finalize();
  return 0;
}

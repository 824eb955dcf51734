// Arrays and pools on a CUDA device: the memory is that of pools, which begins as zeros.
#include "expect.h"

static gf_communicator* communicator;

static gf_pool* make_pool(int device) {
  const size_t counts[] = {1000, 7};
  gf_pool_options options = GF_POOL_OPTIONS_INIT;
  options.device = device;
  gf_pool* pool = NULL;
  OK(gf_pool_create(communicator, counts, 2, GF_FLOAT32, &options, &pool));
  return pool;
}

static void pools(void) {
  gf_pool* pool = make_pool(0);
  OK(gf_pool_set_stream(pool, NULL));
  for (int iteration = 0; iteration < 3; ++iteration) {
    OK(gf_pool_ready(pool, 1));
    OK(gf_pool_ready_all(pool));
    OK(gf_pool_wait(pool, 30));
  }
  int64_t nonfinite;
  OK(gf_pool_nonfinite(pool, &nonfinite));
  REQUIRE(nonfinite == 0);
  OK(gf_pool_ready(pool, 0));
  OK(gf_pool_rollback(pool));
  gf_pool_free(pool);
}

static void calls(void) {
  gf_pool* pool = make_pool(0);
  float* x = gf_pool_tensor(pool, 0);  // an address of the device
  gf_call_options options = GF_CALL_OPTIONS_INIT;
  options.device = 0;
  OK(gf_allreduce(communicator, x, x, 1000, GF_FLOAT32, GF_SUM, &options));
  OK(gf_broadcast(communicator, x, 1000, GF_FLOAT32, 0, &options));
  gf_handle* handle;
  OK(gf_allreduce_async(communicator, x, x, 1000, GF_FLOAT32, GF_MEAN, &options, &handle));
  OK(gf_handle_wait(handle, 30));
  gf_handle_free(handle);
  int64_t nonfinite;
  OK(gf_pool_nonfinite(pool, &nonfinite));
  REQUIRE(nonfinite == 0);
  options.device = 1000;
  REFUSED(gf_allreduce(communicator, x, x, 1000, GF_FLOAT32, GF_SUM, &options), GF_ERROR_VALUE,
          "1000 is not the number of a CUDA device");
  gf_pool_free(pool);
}

int main(void) {
  OK(gf_init(MPI_COMM_WORLD, NULL, &communicator));
  pools();
  calls();
  OK(gf_close(communicator));
  gf_communicator_free(communicator);
  MPI_Finalize();
  return 0;
}

// Training that sends a quarter of its gradients: the important chunks. What is not sent stays in residuals for later.
//
//   mpicc sparse.c -o sparse $(gradientflow config --cflags --libs)
//   mpirun -n 4 ./sparse
#include <gradientflow.h>
#include <stdio.h>
#include <stdlib.h>

enum { count = 10000, steps = 1000 };

static void check(gf_status status) {
  if (status != GF_SUCCESS) {
    fprintf(stderr, "%s: %s\n", gf_status_name(status), gf_last_error_message());
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
  }
}

int main(void) {
  gf_communicator* communicator;
  check(gf_init(MPI_COMM_WORLD, NULL, &communicator));
  const int rank = gf_rank(communicator);

  const size_t counts[] = {count};  // of each tensor of the model, the last layer first
  static float weights[count];      // the same on all ranks, always
  gf_sparse_pool_options options = GF_SPARSE_POOL_OPTIONS_INIT;
  options.chunk_size = 500;  // of a large model: as it is
  options.momentum = 0.9F;   // that of the optimizer
  gf_sparse_pool* pool;
  gf_optimizer* optimizer;
  check(gf_sparse_pool_create(communicator, counts, 1, GF_FLOAT32, &options, &pool));
  check(gf_optimizer_create(counts, 1, 1, &optimizer));
  check(gf_optimizer_set_parameter(optimizer, 0, weights, GF_FLOAT32));

  gf_step_settings settings = GF_STEP_SETTINGS_INIT;
  settings.momentum = 0.9F;
  settings.rate = 0.02F;
  float* const gradient = gf_sparse_pool_tensor(pool, 0);
  for (int step = 0; step < steps; ++step) {
    for (int i = 0; i < count; ++i) {
      gradient[i] = weights[i] - (float)rank;  // backpropagation: every rank pulls to where its own data are
    }
    check(gf_sparse_pool_ready(pool, 0));
    const double density = step + 1 < 20 ? 1 : 0.25;  // of the next iteration; a warm-up
    check(gf_sparse_pool_wait(pool, density, -1));
    check(gf_optimizer_step_sparse(optimizer, pool, &settings, 1, 1));
    check(gf_sparse_pool_zero(pool));
  }
  if (rank == 0) {
    printf("%d ranks: weights %.2f and %.2f\n", gf_size(communicator), weights[0], weights[count - 1]);
  }
  check(gf_close(communicator));
  gf_optimizer_free(optimizer);
  gf_sparse_pool_free(pool);
  gf_communicator_free(communicator);
  MPI_Finalize();
  return 0;
}

// Training with a gradient pool: gradients are averaged in the background, each layer as soon as it is ready.
//
//   mpicc pool.c -o pool $(gradientflow config --cflags --libs)
//   mpirun -n 4 ./pool
#include <gradientflow.h>
#include <stdio.h>
#include <stdlib.h>

enum { layers = 2, steps = 100 };

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

  // The tensors of the model in the order in which backpropagation produces their gradients: the last layer first.
  static float biases[10], weights[784 * 10];
  float* const parameters[layers] = {biases, weights};
  const size_t counts[layers] = {10, 784 * 10};

  // All ranks begin with the same parameters: those of rank 0.
  for (int k = 0; k < layers; ++k) {
    check(gf_broadcast(communicator, parameters[k], counts[k], GF_FLOAT32, 0, NULL));
  }

  gf_pool* pool;
  gf_optimizer* optimizer;
  check(gf_pool_create(communicator, counts, layers, GF_FLOAT32, NULL, &pool));
  check(gf_optimizer_create(counts, layers, 0, &optimizer));
  for (int k = 0; k < layers; ++k) {
    check(gf_optimizer_set_parameter(optimizer, (size_t)k, parameters[k], GF_FLOAT32));
  }
  gf_step_settings settings = GF_STEP_SETTINGS_INIT;
  settings.rate = 0.1F;

  for (int step = 0; step < steps; ++step) {
    for (int k = 0; k < layers; ++k) {
      float* const gradient = gf_pool_tensor(pool, (size_t)k);
      for (size_t i = 0; i < counts[k]; ++i) {
        gradient[i] = parameters[k][i] - (float)rank;  // backpropagation: every rank pulls to where its own data are
      }
      check(gf_pool_ready(pool, (size_t)k));  // from here on the library has it
    }
    check(gf_pool_wait(pool, -1));                               // every gradient is the mean over all ranks
    check(gf_optimizer_step(optimizer, pool, &settings, 1, 1));  // weights change where they are
  }
  if (rank == 0) {
    printf("%d ranks: bias %.2f\n", gf_size(communicator), biases[0]);
  }

  check(gf_close(communicator));
  gf_optimizer_free(optimizer);
  gf_pool_free(pool);
  gf_communicator_free(communicator);
  MPI_Finalize();
  return 0;
}

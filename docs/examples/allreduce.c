// Every rank computes a gradient; all ranks get the mean.
//
//   mpicc allreduce.c -o allreduce $(gradientflow config --cflags --libs)
//   mpirun -n 4 ./allreduce
#include <gradientflow.h>
#include <stdio.h>
#include <stdlib.h>

// Without the rank that failed the others cannot go on either: MPI_Abort ends them all.
static void check(gf_status status) {
  if (status != GF_SUCCESS) {
    fprintf(stderr, "%s: %s\n", gf_status_name(status), gf_last_error_message());
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
  }
}

int main(void) {
  gf_communicator* communicator;
  check(gf_init(MPI_COMM_WORLD, NULL, &communicator));  // initializes MPI
  const int rank = gf_rank(communicator);

  float gradient[1000];
  for (int i = 0; i < 1000; ++i) {
    gradient[i] = (float)(rank + i);
  }
  // In place: the mean replaces what was there.
  check(gf_allreduce(communicator, gradient, gradient, 1000, GF_FLOAT32, GF_MEAN, NULL));

  // In the background, while this rank does something else. Between nodes the values travel as bfloat16.
  float losses[1000], sums[1000];
  for (int i = 0; i < 1000; ++i) {
    losses[i] = (float)rank;
  }
  gf_call_options options = GF_CALL_OPTIONS_INIT;
  options.wire = GF_BFLOAT16;
  gf_handle* handle;
  check(gf_allreduce_async(communicator, losses, sums, 1000, GF_FLOAT32, GF_SUM, &options, &handle));
  // ... something else, which leaves losses and sums alone ...
  check(gf_handle_wait(handle, -1));
  gf_handle_free(handle);

  if (rank == 0) {
    printf("%d ranks: mean %.1f, sum %.1f\n", gf_size(communicator), gradient[0], sums[0]);
  }
  check(gf_close(communicator));
  gf_communicator_free(communicator);
  MPI_Finalize();
  return 0;
}

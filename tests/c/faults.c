// A rank that dies, one that comes late, one that does not ask how its call has ended, and a process that was forked.
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "expect.h"

static void sleep_for(long milliseconds) {
  const struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
  nanosleep(&time, NULL);
}

static void dies(gf_communicator* communicator) {
  float x = 1;
  if (gf_rank(communicator) == 1) raise(SIGKILL);
  REFUSED(gf_allreduce(communicator, &x, &x, 1, GF_FLOAT32, GF_SUM, NULL), GF_ERROR_PEER, "rank 1");
  REFUSED(gf_barrier(communicator), GF_ERROR_PEER, "cannot be used any more");
  gf_communicator* made;
  REFUSED(gf_recover(communicator, 0, &made), GF_ERROR_VALUE, "of a job of MPI cannot be recovered");
  printf("rank %d: PEER\n", gf_rank(communicator));
  fflush(stdout);
  gf_communicator_free(communicator);
  _exit(0);  // MPI cannot be finalized without rank 1
}

static void late(gf_communicator* communicator) {
  if (gf_rank(communicator) == 0) {
    REFUSED(gf_barrier(communicator), GF_ERROR_TIMEOUT, "no sign of rank 1");
  } else {
    sleep_for(1500);
  }
}

// Its call in the background fails on both ranks. Rank 0 does not look, and waits for rank 1, which has gone away.
static void forgotten(gf_communicator* communicator) {
  float x[5] = {0};
  gf_handle* handle;
  const int rank = gf_rank(communicator);
  OK(gf_allreduce_async(communicator, x, x, rank == 0 ? 4 : 5, GF_FLOAT32, GF_SUM, NULL, &handle));
  if (rank == 0) {
    gf_handle_free(handle);
    REFUSED(gf_barrier(communicator), GF_ERROR_TIMEOUT,
            "; before that, an asynchronous call of rank 0 had failed, and nobody has waited for its handle: the ranks "
            "made different calls: rank 0: allreduce of 4 float32");
  } else {
    REFUSED(gf_handle_wait(handle, -1), GF_ERROR_MISMATCH, "different calls");
    gf_handle_free(handle);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

static void forks(gf_communicator* communicator) {
  gf_handle* handle;
  OK(gf_barrier_async(communicator, &handle));
  const pid_t child = fork();
  if (child == 0) {
    int done;
    REFUSED(gf_barrier(communicator), GF_ERROR_CLOSED, "forked");
    REFUSED(gf_handle_test(handle, &done), GF_ERROR_CLOSED, "forked");
    REFUSED(gf_handle_wait(handle, -1), GF_ERROR_CLOSED, "forked");
    gf_handle_free(handle);
    OK(gf_close(communicator));
    gf_communicator_free(communicator);
    _exit(0);
  }
  int status = -1;
  REQUIRE(child > 0 && waitpid(child, &status, 0) == child && status == 0);
  OK(gf_handle_wait(handle, -1));
  gf_handle_free(handle);
  OK(gf_barrier(communicator));
}

int main(int argc, char** argv) {
  REQUIRE(argc == 2);
  const gf_setting settings[] = {
      {"timeout", strcmp(argv[1], "late") == 0 || strcmp(argv[1], "forgotten") == 0 ? "0.5" : "30"}, {NULL, NULL}};
  gf_communicator* communicator;
  OK(gf_init(MPI_COMM_WORLD, settings, &communicator));
  if (strcmp(argv[1], "dies") == 0) dies(communicator);
  if (strcmp(argv[1], "late") == 0) late(communicator);
  if (strcmp(argv[1], "forgotten") == 0) forgotten(communicator);
  if (strcmp(argv[1], "forks") == 0) forks(communicator);
  OK(gf_close(communicator));
  gf_communicator_free(communicator);
  MPI_Finalize();
  return 0;
}

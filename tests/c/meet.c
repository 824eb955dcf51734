// A program without MPI: compiled without its header, it meets the other ranks as its arguments or the environment say.
//
//   meet                        as the environment says
//   meet host:port RANK SIZE    as its arguments say
#include "expect.h"

#ifdef MPI_VERSION
#error "compile this with -DGF_WITHOUT_MPI"
#endif

static void reduce(gf_communicator* communicator) {
  float x[100];
  for (int i = 0; i < 100; ++i) x[i] = (float)gf_rank(communicator);
  OK(gf_allreduce(communicator, x, x, 100, GF_FLOAT32, GF_SUM, NULL));
  REQUIRE(x[99] == (float)(gf_size(communicator) * (gf_size(communicator) - 1) / 2));
  gf_call_options options = GF_CALL_OPTIONS_INIT;
  options.algorithm = GF_ALGORITHM_MPI;
  REFUSED(gf_allreduce(communicator, x, x, 100, GF_FLOAT32, GF_SUM, &options), GF_ERROR_VALUE,
          "has no communicator of these ranks");
}

static void refuse(void) {
  gf_communicator* made = NULL;
  REFUSED(gf_init_meet(NULL, 0, 2, NULL, &made), GF_ERROR_VALUE, "2 ranks have to meet somewhere");
  REFUSED(gf_init_meet("10.0.0.1:29400", 2, 2, NULL, &made), GF_ERROR_VALUE, "there is no rank 2 among 2 ranks");
  REFUSED(gf_init_meet("10.0.0.1:29400", -1, 2, NULL, &made), GF_ERROR_VALUE, "there is no rank -1");
  REFUSED(gf_init_meet("nowhere", 0, 2, NULL, &made), GF_ERROR_VALUE, "nowhere");
  REFUSED(gf_init_meet(NULL, 0, 1, NULL, NULL), GF_ERROR_VALUE, "communicator is NULL");
  REFUSED(gf_init_handle(NULL, 0, NULL, &made), GF_ERROR_VALUE, "mpi is NULL");
  REQUIRE(made == NULL);
}

// Closes `communicator`, of which nobody has died.
static gf_communicator* recover(gf_communicator* communicator) {
  const int rank = gf_rank(communicator);
  const int size = gf_size(communicator);
  gf_communicator* made;
  REQUIRE(gf_recovered_from(communicator, rank) == -1);
  REFUSED(gf_recover(communicator, -1, &made), GF_ERROR_VALUE, "min_ranks is a number of 1 or more, not -1");
  REFUSED(gf_recover(communicator, 0, NULL), GF_ERROR_VALUE, "recovered is NULL");
  REFUSED(gf_recover(NULL, 0, &made), GF_ERROR_VALUE, "communicator is NULL");
  OK(gf_recover(communicator, size, &made));
  REQUIRE(gf_rank(made) == rank && gf_size(made) == size && gf_recovered_from(made, rank) == rank);
  REQUIRE(gf_recovered_from(made, size) == -1 && gf_recovered_from(NULL, 0) == -1);
  REFUSED(gf_barrier(communicator), GF_ERROR_CLOSED, "closed");
  gf_communicator_free(communicator);
  return made;
}

int main(int argc, char** argv) {
  gf_communicator *all, *again, *alone;
  const char* const meet = argc > 3 ? argv[1] : NULL;
  const int rank = argc > 3 ? atoi(argv[2]) : 0;
  const int size = argc > 3 ? atoi(argv[3]) : 0;
  refuse();
  OK(gf_init_meet(NULL, 0, 1, NULL, &alone));
  REQUIRE(gf_size(alone) == 1);
  reduce(alone);
  OK(gf_init_meet(meet, rank, size, NULL, &all));
  OK(gf_init_meet(meet, rank, size, NULL, &again));  // at the same place
  reduce(all);
  reduce(again);
  again = recover(again);
  reduce(again);
  OK(gf_barrier(all));  // before `again` ends, while others may still be in its last call
  if (gf_rank(all) == 0) printf("%d ranks without MPI\n", gf_size(all));
  gf_communicator_free(again);
  OK(gf_close(all));
  gf_communicator_free(all);
  gf_communicator_free(alone);
  return 0;
}

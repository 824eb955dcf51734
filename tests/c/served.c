// The parameter server: rounds of all ranks, pushes as they come, and what is refused.
#include <math.h>

#include "expect.h"

enum { tensors = 3 };
static const size_t counts[tensors] = {5, 0, 300};
static int rank, size;

static gf_parameter_server* make_server(gf_communicator* communicator, const gf_parameter_server_options* options) {
  float first[300];
  for (int i = 0; i < 300; ++i) first[i] = (float)i;
  const float* const weights[tensors] = {first, NULL, first};
  gf_parameter_server* server;
  OK(gf_parameter_server_create(communicator, counts, tensors, rank == 0 ? weights : NULL, options, &server));
  return server;
}

static uint64_t push(gf_parameter_server* server, float value, int skip) {
  float gradient[300];
  for (int i = 0; i < 300; ++i) gradient[i] = value;
  for (size_t i = 0; i < tensors; ++i) OK(gf_parameter_server_ready(server, i, gradient, GF_FLOAT32));
  gf_step_settings settings = GF_STEP_SETTINGS_INIT;
  settings.rate = 0.5F;
  uint64_t number;
  OK(gf_parameter_server_push(server, &settings, 1, 2, skip, &number));
  return number;
}

static void expect_weights(gf_parameter_server* server, uint64_t pull, float difference) {
  float weights[300];
  for (size_t tensor = 0; tensor < tensors; ++tensor) {
    OK(gf_parameter_server_take(server, pull, tensor, weights));
    for (size_t i = 0; i < counts[tensor]; ++i) REQUIRE(fabsf(weights[i] - ((float)i + difference)) < 1e-3F);
  }
}

static void rounds(gf_communicator* communicator) {
  gf_parameter_server* const server = make_server(communicator, NULL);
  uint64_t pull;
  int skipped = -1;
  OK(gf_parameter_server_wait_push(server, push(server, 4.0F * (float)rank, 0), -1, &skipped));
  REQUIRE(skipped == 0);
  OK(gf_parameter_server_wait_push(server, push(server, 7, rank == 0), 30, &skipped));
  REQUIRE(skipped == 1);
  OK(gf_parameter_server_pull(server, 0, &pull));
  OK(gf_parameter_server_wait_pull(server, pull, -1));
  expect_weights(server, pull, -0.5F * (float)(size - 1));  // the mean of 2 * rank, at a rate of 0.5
  gf_step_settings settings = GF_STEP_SETTINGS_INIT;
  uint64_t number;
  REFUSED(gf_parameter_server_push_pull(server, &settings, 1, 1, 3, 0, &number, &pull), GF_ERROR_VALUE, "gf_skip 3");
  OK(gf_parameter_server_push_pull(server, &settings, 1, 1, rank == 0 ? GF_SKIP_ABANDONED : GF_SKIP_NO, 1, &number,
                                   &pull));
  OK(gf_parameter_server_wait_push(server, number, 30, &skipped));
  REQUIRE(skipped == GF_SKIP_ABANDONED);
  OK(gf_parameter_server_wait_pull(server, pull, 30));
  expect_weights(server, pull, -0.5F * (float)(size - 1));
  REFUSED(gf_parameter_server_push(server, &settings, 2, 1, 0, &pull), GF_ERROR_VALUE, "settings");
  settings.trust = 1;
  REFUSED(gf_parameter_server_push(server, &settings, 1, 1, 0, &pull), GF_ERROR_VALUE, "lars");
  settings.rate = -1;
  REFUSED(gf_parameter_server_push(server, &settings, 1, 1, 0, &pull), GF_ERROR_VALUE, "rate");
  REFUSED(gf_parameter_server_ready(server, 0, NULL, GF_FLOAT32), GF_ERROR_VALUE, "gradient is NULL");
  REFUSED(gf_parameter_server_take(server, 9, 0, (float*)&settings), GF_ERROR_VALUE, "pull 9");
  OK(gf_parameter_server_finish(server, -1, &pull));
  OK(gf_parameter_server_close(server));
  gf_parameter_server_free(server);
}

// A round leaves a tensor alone that is ready on no rank; one that is ready on some gets zeros from the others.
static void left_alone(gf_communicator* communicator) {
  gf_parameter_server* const server = make_server(communicator, NULL);
  gf_step_settings settings = GF_STEP_SETTINGS_INIT;
  settings.rate = 0.5F;
  settings.weight_decay = 1;
  const float zeros[5] = {0};
  float weights[300];
  uint64_t number, pull;
  if (rank == 0) OK(gf_parameter_server_ready(server, 0, zeros, GF_FLOAT32));
  OK(gf_parameter_server_push_pull(server, &settings, 1, 1, GF_SKIP_NO, 1, &number, &pull));
  for (size_t tensor = 0; tensor < tensors; ++tensor) {
    OK(gf_parameter_server_take(server, pull, tensor, weights));
    for (size_t i = 0; i < counts[tensor]; ++i) REQUIRE(weights[i] == (float)i * (tensor == 0 ? 0.5F : 1));
  }
  OK(gf_parameter_server_finish(server, -1, &pull));
  OK(gf_parameter_server_close(server));
  gf_parameter_server_free(server);
}

static void in_place(gf_communicator* communicator) {
  gf_parameter_server_options options = GF_PARAMETER_SERVER_OPTIONS_INIT;
  gf_step_settings settings = GF_STEP_SETTINGS_INIT;
  settings.rate = 0.5F;
  for (options.servers = 1; options.servers <= (size_t)size; ++options.servers) {
    gf_parameter_server* const server = make_server(communicator, &options);
    uint64_t number, pull = 0;
    const void* weights;
    void* gradient;
    for (int step = 1; step <= 4; ++step) {
      for (size_t tensor = 0; tensor < tensors; ++tensor) {
        OK(gf_parameter_server_gradient(server, tensor, &gradient));
        REQUIRE((gradient == NULL) == (counts[tensor] == 0));
        for (size_t i = 0; i < counts[tensor]; ++i) ((float*)gradient)[i] = 2.0F * (float)rank;
        OK(gf_parameter_server_ready(server, tensor, gradient, GF_FLOAT32));
      }
      if (step == 4) {
        void* other;
        OK(gf_parameter_server_gradient(server, 0, &other));
        REFUSED(gf_parameter_server_ready(server, 0, other, GF_FLOAT32), GF_ERROR_VALUE, "ready");
      }
      OK(gf_parameter_server_push_pull(server, &settings, 1, 1, GF_SKIP_NO, 0, &number, &pull));
      for (size_t tensor = 0; tensor < tensors; ++tensor) {
        OK(gf_parameter_server_weights(server, pull, tensor, &weights));
        REQUIRE((weights == NULL) == (counts[tensor] == 0));
        const float difference = -0.5F * (float)(step * (size - 1));
        for (size_t i = 0; i < counts[tensor]; ++i)
          REQUIRE(fabsf(((const float*)weights)[i] - ((float)i + difference)) < 1e-3F);
      }
    }
    OK(gf_parameter_server_gradient(server, 0, &gradient));
    REFUSED(gf_parameter_server_ready(server, 2, gradient, GF_FLOAT32), GF_ERROR_VALUE, "gradient 2 lies");
    REFUSED(gf_parameter_server_gradient(server, tensors, &gradient), GF_ERROR_VALUE, "no tensor 3");
    REFUSED(gf_parameter_server_gradient(server, 0, NULL), GF_ERROR_VALUE, "gradient is NULL");
    REFUSED(gf_parameter_server_weights(server, pull, tensors, &weights), GF_ERROR_VALUE, "no tensor 3");
    REFUSED(gf_parameter_server_weights(server, pull - 1, 0, &weights), GF_ERROR_VALUE, "has given way");
    REFUSED(gf_parameter_server_weights(server, pull, 0, NULL), GF_ERROR_VALUE, "weights is NULL");
    OK(gf_parameter_server_finish(server, -1, &pull));
    OK(gf_parameter_server_close(server));
    gf_parameter_server_free(server);
  }
}

static void as_they_come(gf_communicator* communicator) {
  gf_parameter_server_options options = GF_PARAMETER_SERVER_OPTIONS_INIT;
  options.servers = 1;
  options.fusion_threshold = 0;
  for (int policy = GF_POLICY_ASP; policy <= GF_POLICY_SSP; ++policy) {
    options.policy = (gf_policy)policy;
    gf_parameter_server* const server = make_server(communicator, &options);
    for (int i = 0; i < 3; ++i) OK(gf_parameter_server_wait_push(server, push(server, 4, 0), 30, NULL));
    uint64_t pull;
    OK(gf_parameter_server_finish(server, 30, &pull));
    expect_weights(server, pull, -3.0F * (float)size);
    OK(gf_parameter_server_close(server));
    gf_parameter_server_free(server);
  }
  gf_parameter_server* none;
  options.policy = GF_POLICY_SSP;
  options.staleness = -1;
  REFUSED(gf_parameter_server_create(communicator, counts, tensors, NULL, &options, &none), GF_ERROR_VALUE,
          rank == 0 ? "weights is NULL" : "staleness");
}

int main(void) {
  gf_communicator* communicator;
  OK(gf_init(MPI_COMM_WORLD, NULL, &communicator));
  rank = gf_rank(communicator);
  size = gf_size(communicator);
  rounds(communicator);
  left_alone(communicator);
  in_place(communicator);
  as_they_come(communicator);
  OK(gf_close(communicator));
  gf_communicator_free(communicator);
  MPI_Finalize();
  return 0;
}

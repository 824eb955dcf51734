// The parameter server for C.
#include "../engine/server/parameter_server.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../policy/asp.hpp"
#include "../policy/bsp.hpp"
#include "../policy/ssp.hpp"
#include "arguments.hpp"
#include "objects.hpp"
#include "options.hpp"
#include "status.hpp"

using namespace gradientflow::c;  // NOLINT(google-build-using-namespace): its C functions are below
using gradientflow::Error;
using gradientflow::ErrorKind;
using gradientflow::engine::ParameterServer;
using gradientflow::engine::Server;
using gradientflow::engine::ServerSettings;
using gradientflow::engine::ServerWorker;
using gradientflow::engine::Skip;

namespace {

ServerWorker& worker_of(gf_parameter_server* server) { return given(server, "server").engine->worker(); }

ServerWorker::Seconds seconds(double timeout) { return timeout < 0 ? std::nullopt : std::optional(timeout); }

Server::MakePolicy maker_of(int policy, std::int64_t staleness, int workers) {
  namespace policies = gradientflow::policy;
  switch (policy) {
    case GF_POLICY_BSP:
      return [=] { return std::make_shared<policies::Bsp>(workers); };
    case GF_POLICY_ASP:
      return [] { return std::make_shared<policies::Asp>(); };
    case GF_POLICY_SSP:
      static_cast<void>(policies::Ssp(workers, staleness));
      return [=] { return std::make_shared<policies::Ssp>(workers, staleness); };
    default:
      throw Error(ErrorKind::value, "there is no gf_policy " + std::to_string(policy));
  }
}

Skip skip_of(int skip) {
  if (skip < GF_SKIP_NO || skip > GF_SKIP_ABANDONED) {
    throw Error(ErrorKind::value, "there is no gf_skip " + std::to_string(skip));
  }
  return static_cast<Skip>(skip);
}

// Reads an array whose stride is the size of the program's struct.
std::vector<ServerSettings> settings_of(const gf_step_settings* settings, std::size_t number) {
  const gf_step_settings defaults = GF_STEP_SETTINGS_INIT;
  const auto* at = reinterpret_cast<const std::byte*>(number > 0 ? &given(settings, "settings") : nullptr);
  std::vector<ServerSettings> found;
  for (std::size_t i = 0; i < number; ++i) {
    const auto one = options_of(defaults, at, "gf_step_settings", "GF_STEP_SETTINGS_INIT");
    found.push_back({one.rate, one.momentum, one.weight_decay, one.trust});
    at += one.size;
  }
  return found;
}

}  // namespace

gf_status gf_parameter_server_create(gf_communicator* communicator, const size_t* counts, size_t tensors,
                                     const float* const* weights, const gf_parameter_server_options* options,
                                     gf_parameter_server** server) {
  return guarded([&] {
    gf_parameter_server*& result = result_of(server, "server");
    gradientflow::engine::Communicator& owner = *given(communicator, "communicator").engine;
    const auto of_each = tensor_counts(counts, tensors, sizeof(float));
    const gf_parameter_server_options defaults = GF_PARAMETER_SERVER_OPTIONS_INIT;
    const auto known = options_of(defaults, options, "gf_parameter_server_options", "GF_PARAMETER_SERVER_OPTIONS_INIT");
    const int policy = static_cast<int>(known.policy);
    ParameterServer::Options made;
    made.policy = "gf_policy " + std::to_string(policy) + ", staleness " + std::to_string(known.staleness);
    made.optimizer.name = known.lars != 0 ? "lars" : "sgd";
    if (known.servers > 0) {
      made.servers = known.servers;
    }
    if (known.fusion_threshold != GF_AUTO_THRESHOLD) {
      made.fusion_threshold = known.fusion_threshold;
    }
    made.wire = given_wire(known.wire).value_or(made.wire);
    std::vector<const float*> first;
    if (owner.rank() == 0 && tensors > 0) {
      first.assign(&given(weights, "weights"), &given(weights, "weights") + tensors);
      for (std::size_t i = 0; i < tensors; ++i) {
        if (of_each[i] > 0) {
          static_cast<void>(given(first[i], "the weights of a tensor"));
        }
      }
    }
    auto engine =
        std::make_shared<ParameterServer>(owner, of_each, made, maker_of(policy, known.staleness, owner.size()));
    if (owner.rank() == 0) {
      engine->worker().load(0, first);
    }
    result = new gf_parameter_server{std::move(engine)};
  });
}

gf_status gf_parameter_server_gradient(gf_parameter_server* server, size_t tensor, void** gradient) {
  return guarded([&] {
    void*& result = result_of(gradient, "gradient");
    std::byte* const place = worker_of(server).gradient(tensor, {});
    result = server->engine->layout().counts()[tensor] > 0 ? place : nullptr;
  });
}

gf_status gf_parameter_server_ready(gf_parameter_server* server, size_t tensor, const void* gradient, gf_dtype dtype) {
  return guarded([&, number = int{dtype}] {
    ServerWorker& worker = worker_of(server);
    const auto& counts = server->engine->layout().counts();
    if (tensor < counts.size() && counts[tensor] > 0 && gradient == nullptr) {
      throw Error(ErrorKind::value, "gradient is NULL");
    }
    worker.ready(tensor, gradient, dtype_of(number));
  });
}

gf_status gf_parameter_server_push(gf_parameter_server* server, const gf_step_settings* settings, size_t number,
                                   float loss_scale, int skip, uint64_t* push) {
  return guarded([&] {
    uint64_t& result = given(push, "push");
    result = worker_of(server).push(settings_of(settings, number), loss_scale, skip_of(skip)).push;
  });
}

gf_status gf_parameter_server_push_pull(gf_parameter_server* server, const gf_step_settings* settings, size_t number,
                                        float loss_scale, int skip, int exact, uint64_t* push, uint64_t* pull) {
  return guarded([&] {
    uint64_t& pushed = given(push, "push");
    uint64_t& pulled = given(pull, "pull");
    const auto numbers =
        worker_of(server).push(settings_of(settings, number), loss_scale, skip_of(skip),
                               exact != 0 ? ServerWorker::WithPull::exact : ServerWorker::WithPull::rounded);
    pushed = numbers.push;
    pulled = numbers.pull;
  });
}

gf_status gf_parameter_server_wait_push(gf_parameter_server* server, uint64_t push, double timeout, int* skipped) {
  return guarded([&] {
    const std::uint64_t skip = worker_of(server).wait_for_push(push, seconds(timeout)).skip;
    if (skipped != nullptr) {
      *skipped = static_cast<int>(skip);
    }
  });
}

gf_status gf_parameter_server_pull(gf_parameter_server* server, int exact, uint64_t* pull) {
  return guarded([&] {
    uint64_t& result = given(pull, "pull");
    result = worker_of(server).pull(exact != 0);
  });
}

gf_status gf_parameter_server_wait_pull(gf_parameter_server* server, uint64_t pull, double timeout) {
  return guarded([&] { worker_of(server).wait_for_pull(pull, seconds(timeout)); });
}

gf_status gf_parameter_server_take(gf_parameter_server* server, uint64_t pull, size_t tensor, float* weights) {
  return guarded([&] {
    ServerWorker& worker = worker_of(server);
    const auto& counts = server->engine->layout().counts();
    if (tensor < counts.size() && counts[tensor] > 0) {
      static_cast<void>(given(weights, "weights"));
    }
    worker.take(pull, tensor, weights, {});
  });
}

gf_status gf_parameter_server_weights(gf_parameter_server* server, uint64_t pull, size_t tensor, const void** weights) {
  return guarded([&] {
    const void*& result = result_of(weights, "weights");
    result = worker_of(server).weights(pull, tensor, {}).data;
  });
}

gf_status gf_parameter_server_finish(gf_parameter_server* server, double timeout, uint64_t* pull) {
  return guarded([&] {
    uint64_t& result = given(pull, "pull");
    result = worker_of(server).finish(seconds(timeout));
  });
}

gf_status gf_parameter_server_close(gf_parameter_server* server) {
  return guarded([&] { given(server, "server").engine->close(true); });
}

void gf_parameter_server_free(gf_parameter_server* server) { delete server; }

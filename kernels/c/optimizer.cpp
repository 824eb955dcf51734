// Optimizers over the gradients of a pool.
#include "../engine/update/optimizer.hpp"

#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "../base/error.hpp"
#include "../base/text.hpp"
#include "arguments.hpp"
#include "objects.hpp"
#include "options.hpp"
#include "status.hpp"

namespace gradientflow::c {
namespace {

using engine::Optimizer;
using Settings = std::vector<std::optional<Optimizer::Settings>>;

void check_tensor(const Optimizer& optimizer, std::size_t tensor) {
  if (tensor >= optimizer.tensors()) {
    throw Error(ErrorKind::value, "tensor " + std::to_string(tensor) + " is not in the optimizer, which has " +
                                      std::to_string(optimizer.tensors()));
  }
}

void check_number(const char* name, float number) {
  if (!(number >= 0.0F) || !std::isfinite(number)) {
    throw Error(ErrorKind::value,
                std::string(name) + " is 0 or more, not " + format_number(static_cast<double>(number)));
  }
}

void check_adam(double beta_1, double beta_2, double epsilon) {
  for (const double beta : {beta_1, beta_2}) {
    const bool is_share = beta >= 0.0 && beta < 1.0;
    if (!is_share) {
      throw Error(ErrorKind::value, "beta_1 and beta_2 are from 0 to below 1, not " + format_number(beta));
    }
  }
  if (!(epsilon >= 0.0) || !std::isfinite(epsilon)) {
    throw Error(ErrorKind::value, "epsilon is 0 or more, not " + format_number(epsilon));
  }
}

// Reads an array whose stride is the size of the program's struct.
Settings settings_of(const gf_step_settings* settings, std::size_t number, std::size_t tensors) {
  if (number != 1 && number != tensors) {
    throw Error(ErrorKind::value, "there are settings for " + std::to_string(number) + " tensors, and " +
                                      std::to_string(tensors) + " tensors; give one for each, or a single one");
  }
  const gf_step_settings defaults = GF_STEP_SETTINGS_INIT;
  const auto* const bytes = reinterpret_cast<const std::byte*>(number > 0 ? &given(settings, "settings") : nullptr);
  std::size_t size = 0;
  Settings found;
  for (std::size_t i = 0; i < number; ++i) {
    const auto one = options_of(defaults, bytes + i * size, "gf_step_settings", "GF_STEP_SETTINGS_INIT");
    if (i > 0 && one.size != size) {
      throw Error(ErrorKind::value, "settings " + std::to_string(i) + " have another size than the first; begin with " +
                                        "GF_STEP_SETTINGS_INIT");
    }
    size = one.size;
    check_number("rate", one.rate);
    check_number("momentum", one.momentum);
    check_number("weight_decay", one.weight_decay);
    check_number("trust", one.trust);
    found.emplace_back(Optimizer::Settings{one.rate, one.momentum, one.weight_decay, one.trust});
  }
  if (number == 1) {
    found.resize(tensors, found.front());
  }
  return found;
}

template <class Step>
gf_status step(gf_optimizer* optimizer, const gf_step_settings* settings, std::size_t number, double gradient_scale,
               Step one) {
  return guarded([&] {
    Optimizer& engine = given(optimizer, "optimizer").engine;
    if (!(gradient_scale > 0.0) || !std::isfinite(gradient_scale)) {
      throw Error(ErrorKind::value, "gradient_scale is above 0, not " + format_number(gradient_scale));
    }
    Settings of_each = settings_of(settings, number, engine.tensors());
    std::optional<Optimizer::Adam>& adam = optimizer->adam;
    if (adam) {
      for (std::optional<Optimizer::Settings>& each : of_each) {
        if (each->momentum != 0.0F || each->trust != 0.0F) {
          throw Error(ErrorKind::value, "Adam has no momentum and no trust: let both be 0");
        }
        each->adam = adam;
        ++each->adam->updates;
      }
    }
    one(engine, of_each);
    if (adam) {
      ++adam->updates;
    }
  });
}

// Returns an array of the optimizer for a tensor, or nullptr.
template <class Choose>
float* array_of(gf_optimizer* optimizer, std::size_t tensor, Choose choose) {
  float* data = nullptr;
  quietly([&] {
    Optimizer& engine = given(optimizer, "optimizer").engine;
    check_tensor(engine, tensor);
    data = choose(engine).data();
  });
  return data;
}

}  // namespace
}  // namespace gradientflow::c

using namespace gradientflow::c;  // NOLINT(google-build-using-namespace): its C functions are below

gf_status gf_optimizer_create(const size_t* counts, size_t tensors, int rate_inside, gf_optimizer** optimizer) {
  return guarded([&] {
    gf_optimizer*& result = result_of(optimizer, "optimizer");
    result = new gf_optimizer{Optimizer(tensor_counts(counts, tensors, sizeof(float)), rate_inside != 0)};
  });
}

gf_status gf_optimizer_set_adam(gf_optimizer* optimizer, double beta_1, double beta_2, double epsilon, int decoupled,
                                uint64_t updates) {
  return guarded([&] {
    gf_optimizer& found = given(optimizer, "optimizer");
    check_adam(beta_1, beta_2, epsilon);
    found.adam = {beta_1, beta_2, epsilon, decoupled != 0, updates};
  });
}

gf_status gf_optimizer_set_parameter(gf_optimizer* optimizer, size_t tensor, void* data, gf_dtype dtype) {
  return guarded([&, number = int{dtype}] {
    Optimizer& engine = given(optimizer, "optimizer").engine;
    check_tensor(engine, tensor);
    auto* const weights = static_cast<std::byte*>(data);
    if (engine.count(tensor) > 0) {
      given(weights, "data");
    }
    engine.set_parameter(tensor, weights, dtype_of(number), false);
  });
}

gf_status gf_optimizer_step(gf_optimizer* optimizer, const gf_pool* pool, const gf_step_settings* settings,
                            size_t number, double gradient_scale) {
  return step(optimizer, settings, number, gradient_scale, [&](Optimizer& engine, const Settings& of_each) {
    engine.step(given(pool, "pool").engine.update(), of_each, gradient_scale);
  });
}

gf_status gf_optimizer_step_sparse(gf_optimizer* optimizer, const gf_sparse_pool* pool,
                                   const gf_step_settings* settings, size_t number, double gradient_scale) {
  return step(optimizer, settings, number, gradient_scale, [&](Optimizer& engine, const Settings& of_each) {
    engine.step(given(pool, "pool").engine.update(false), of_each, gradient_scale);
  });
}

gf_status gf_optimizer_step_top_k(gf_optimizer* optimizer, const gf_top_k_pool* pool, const gf_step_settings* settings,
                                  size_t number, double gradient_scale) {
  return step(optimizer, settings, number, gradient_scale, [&](Optimizer& engine, const Settings& of_each) {
    engine.step(given(pool, "pool").engine.update(), of_each, gradient_scale);
  });
}

float* gf_optimizer_momentum(gf_optimizer* optimizer, size_t tensor) {
  return array_of(optimizer, tensor, [&](Optimizer& engine) -> auto& { return engine.momentum(tensor); });
}

float* gf_optimizer_mean_square(gf_optimizer* optimizer, size_t tensor) {
  return array_of(optimizer, tensor, [&](Optimizer& engine) -> auto& { return engine.mean_square(tensor); });
}

float* gf_optimizer_master(gf_optimizer* optimizer, size_t tensor) {
  return array_of(optimizer, tensor, [&](Optimizer& engine) -> auto& { return engine.master(tensor); });
}

void gf_optimizer_free(gf_optimizer* optimizer) { delete optimizer; }

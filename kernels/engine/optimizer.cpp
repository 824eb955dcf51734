#include "optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "../compute/kernels.hpp"
#include "../compute/optimizer_steps.hpp"

namespace gradientflow::engine {

// Where the gradients of all tensors are, and which of them are there.
struct Optimizer::Gradients {
  const std::byte* data;
  DType dtype;
  std::vector<std::size_t> offsets;     // of each tensor, in elements
  std::vector<SparsePool::Span> spans;  // sorted

  [[nodiscard]] const std::byte* at(std::size_t element) const { return data + element * size_of(dtype); }

  // Calls work(begin, end), in elements of the tensor, for each part of it that has gradients.
  template <class Work>
  void each_part(std::size_t tensor, std::size_t count, Work work) const {
    const std::size_t first = offsets[tensor];
    const std::size_t last = first + count;
    auto span = std::upper_bound(spans.begin(), spans.end(), first,
                                 [](std::size_t element, const auto& other) { return element < other.end; });
    for (; span != spans.end() && span->begin < last; ++span) {
      const std::size_t begin = std::max(first, span->begin);
      const std::size_t end = std::min(last, span->end);
      if (begin < end) {
        work(begin - first, end - first);
      }
    }
  }
};

namespace {

template <class Pool>
std::vector<std::size_t> offsets_of(const Pool& pool, std::size_t tensors) {
  std::vector<std::size_t> offsets;
  for (std::size_t tensor = 0; tensor < tensors; ++tensor) {
    offsets.push_back(pool.offset(tensor) / size_of(pool.dtype()));
  }
  return offsets;
}

template <class Pool>
void check_fits(const Optimizer& optimizer, const Pool& pool) {
  bool fits = pool.tensors() >= optimizer.tensors();  // a pool may have more, of another use
  for (std::size_t tensor = 0; fits && tensor < optimizer.tensors(); ++tensor) {
    const std::size_t end = tensor + 1 < pool.tensors() ? pool.offset(tensor + 1) : pool.bytes();
    fits = optimizer.count(tensor) * size_of(pool.dtype()) <= end - pool.offset(tensor);
  }
  if (!fits) {
    throw Error(ErrorKind::value, "the pool has other tensors than the optimizer");
  }
  if (pool.dtype() == DType::float64) {
    throw Error(ErrorKind::type, "gradients are float16, bfloat16 or float32, not float64");
  }
}

}  // namespace

Optimizer::Optimizer(const std::vector<std::size_t>& counts, bool rate_inside) : rate_inside_(rate_inside) {
  for (const std::size_t count : counts) {
    parameters_.push_back({.count = count, .momentum = {}, .master = {}});
  }
}

FloatArray& Optimizer::momentum(std::size_t tensor) {
  Parameter& parameter = parameters_[tensor];
  if (parameter.momentum.size() != parameter.count) {
    parameter.momentum = FloatArray(parameter.count);
  }
  return parameter.momentum;
}

void Optimizer::set_parameter(std::size_t tensor, std::byte* data, DType dtype, bool keep_master) {
  if (dtype != DType::float32 && dtype != DType::float16 && dtype != DType::bfloat16) {
    throw Error(ErrorKind::type, "weights are float32, float16 or bfloat16, not " + std::string(name_of(dtype)));
  }
  Parameter& parameter = parameters_[tensor];
  parameter.data = data;
  parameter.dtype = dtype;
  if (dtype == DType::float32) {
    parameter.master = FloatArray();
  } else if (!keep_master || parameter.master.size() != parameter.count) {
    parameter.master = FloatArray(parameter.count);
    compute::cast(parameter.master.data(), DType::float32, data, dtype, parameter.count, 1.0F);
  }
}

void Optimizer::round_master(std::size_t tensor) {
  const Parameter& parameter = parameters_[tensor];
  if (parameter.master.data() != nullptr && parameter.data != nullptr) {
    compute::cast(parameter.data, parameter.dtype, parameter.master.data(), DType::float32, parameter.count, 1.0F);
  }
}

void Optimizer::step(const GradientPool& pool, std::span<const std::optional<Settings>> settings,
                     double gradient_scale) {
  check_fits(*this, pool);
  const std::size_t elements = pool.bytes() / size_of(pool.dtype());
  step({.data = pool.data(), .dtype = pool.dtype(), .offsets = offsets_of(pool, tensors()), .spans = {{0, elements}}},
       settings, static_cast<float>(gradient_scale));
}

void Optimizer::step(const SparsePool& pool, std::span<const std::optional<Settings>> settings, double gradient_scale,
                     bool everywhere) {
  check_fits(*this, pool);
  step({.data = pool.data(),
        .dtype = pool.dtype(),
        .offsets = offsets_of(pool, tensors()),
        .spans = everywhere ? std::vector<SparsePool::Span>{{0, pool.elements()}} : pool.spans()},
       settings, static_cast<float>(gradient_scale));
}

void Optimizer::step(const Gradients& gradients, std::span<const std::optional<Settings>> settings, float scale) {
  if (settings.size() != tensors()) {
    throw Error(ErrorKind::value, "there are settings for " + std::to_string(settings.size()) + " tensors, and " +
                                      std::to_string(tensors()) + " tensors");
  }
  for (std::size_t tensor = 0; tensor < tensors(); ++tensor) {
    const std::optional<Settings>& given = settings[tensor];
    if (given && parameters_[tensor].count > 0 && parameters_[tensor].data == nullptr) {
      throw Error(ErrorKind::value, "the weights of tensor " + std::to_string(tensor) + " are missing");
    }
    if (given && given->momentum != 0.0F) {
      (void)momentum(tensor);  // memory may be what is missing: before anything is changed
    }
  }
  for (std::size_t tensor = 0; tensor < tensors(); ++tensor) {
    if (const std::optional<Settings>& given = settings[tensor]) {
      step_of(parameters_[tensor], *given, gradients, tensor, scale);
    }
  }
}

void Optimizer::step_of(Parameter& parameter, const Settings& settings, const Gradients& gradients, std::size_t tensor,
                        float scale) {
  const bool has_master = parameter.master.data() != nullptr;
  float* const weights = has_master ? parameter.master.data() : reinterpret_cast<float*>(parameter.data);
  float* const momentum = parameter.momentum.data();
  const std::size_t first = gradients.offsets[tensor];
  float rate = settings.rate;
  if (settings.trust > 0.0F) {
    double squares = 0.0;
    gradients.each_part(tensor, parameter.count, [&](std::size_t begin, std::size_t end) {
      squares += compute::sum_of_squares(gradients.at(first + begin), gradients.dtype, end - begin, scale);
    });
    const double weight = std::sqrt(compute::sum_of_squares(weights, DType::float32, parameter.count));
    const double gradient = std::sqrt(squares);
    if (weight > 0.0 && gradient > 0.0) {
      rate = static_cast<float>(static_cast<double>(rate) * static_cast<double>(settings.trust) * weight /
                                (gradient + static_cast<double>(settings.weight_decay) * weight));
    }
  }
  const bool inside = rate_inside_ || settings.trust > 0.0F;  // a local rate changes from step to step
  gradients.each_part(tensor, parameter.count, [&](std::size_t begin, std::size_t end) {
    compute::momentum_step({.weight = weights + begin,
                            .parameter = has_master ? parameter.data + begin * size_of(parameter.dtype) : nullptr,
                            .parameter_dtype = parameter.dtype,
                            .gradient = gradients.at(first + begin),
                            .gradient_dtype = gradients.dtype,
                            .momentum = momentum == nullptr ? nullptr : momentum + begin,
                            .count = end - begin,
                            .gradient_scale = scale,
                            .weight_decay = settings.weight_decay,
                            .factor = settings.momentum,
                            .inner_rate = inside ? rate : 1.0F,
                            .outer_rate = inside ? 1.0F : rate});
  });
}

}  // namespace gradientflow::engine

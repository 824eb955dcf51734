#include "optimizer.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "../../compute/kernels.hpp"
#include "../../compute/steps/steps.hpp"
#include "../../compute/sum_of_squares.hpp"

namespace gradientflow::engine {

// Gradients of an update, tensor by tensor.
struct Optimizer::Gradients {
  const Update& update;

  [[nodiscard]] DType dtype() const { return update.dtype; }
  [[nodiscard]] const std::byte* at(std::size_t element) const { return update.data + element * size_of(update.dtype); }

  // Calls work(begin, end), in elements of the tensor, for each part of it that has gradients.
  template <class Work>
  void each_part(std::size_t tensor, std::size_t count, Work work) const {
    const std::size_t first = update.offsets[tensor];
    const std::size_t last = first + count;
    auto span = std::upper_bound(update.spans.begin(), update.spans.end(), first,
                                 [](std::size_t element, const auto& other) { return element < other.end; });
    for (; span != update.spans.end() && span->begin < last; ++span) {
      const std::size_t begin = std::max(first, span->begin);
      const std::size_t end = std::min(last, span->end);
      if (begin < end) {
        work(begin - first, end - first);
      }
    }
  }

  // Calls work(begin, end, gradients) for each part of the tensor that has gradients. If the step takes the mean of
  // several ranks, it works in blocks whose means stay in a cache until they are used.
  template <class Work>
  void each_gradient(std::size_t tensor, std::size_t count, Work work) const {
    constexpr std::size_t block = 4096;
    alignas(64) std::array<std::byte, block * sizeof(float)> means;  // NOLINT(*-member-init): written before it is read
    each_part(tensor, count, [&](std::size_t begin, std::size_t end) {
      if (update.of_ranks.empty()) {
        work(begin, end, at(update.offsets[tensor] + begin));
        return;
      }
      const compute::Reduction mean{.dtype = dtype(), .op = ReduceOp::mean, .divisor = ranks()};
      std::vector<const void*> sources(update.of_ranks.size());
      for (std::size_t next = begin; next < end; next = std::min(end, next + block)) {
        const std::size_t length = std::min(block, end - next);
        const std::size_t place = (update.offsets[tensor] + next) * size_of(update.dtype);
        std::ranges::transform(update.of_ranks, sources.begin(), [&](const auto* memory) { return memory + place; });
        void* const destination = means.data();
        compute::reduce({&destination, 1}, sources, length, mean);
        work(next, next + length, means.data());
      }
    });
  }

 private:
  [[nodiscard]] int ranks() const { return static_cast<int>(update.of_ranks.size()); }
};

// Step of one tensor.
struct Optimizer::Task {
  const Parameter& parameter;
  const Settings& settings;
  const Gradients& gradients;
  std::size_t tensor;
  float scale;

  [[nodiscard]] bool has_master() const { return parameter.master.data() != nullptr; }
  [[nodiscard]] bool is_local() const { return !settings.adam && settings.trust > 0.0F; }  // the rate is that of LARS
  [[nodiscard]] float* weights() const {
    return has_master() ? parameter.master.data() : reinterpret_cast<float*>(parameter.data);
  }
  [[nodiscard]] std::byte* parameter_at(std::size_t element) const {  // null unless weights are 16-bit
    return has_master() ? parameter.data + element * size_of(parameter.dtype) : nullptr;
  }
  [[nodiscard]] const std::byte* gradient(std::size_t element) const {
    return gradients.at(gradients.update.offsets[tensor] + element);
  }
  template <class Work>
  void each_part(Work work) const {
    gradients.each_part(tensor, parameter.count, work);
  }

  // Returns the local rate of LARS, for gradients and weights with these sums of squares.
  [[nodiscard]] float local_rate(double gradient_squares, double weight_squares) const {
    const double weight = std::sqrt(weight_squares);
    const double gradient = std::sqrt(gradient_squares);
    if (weight > 0.0 && gradient > 0.0) {
      const double rate = static_cast<double>(settings.rate) * static_cast<double>(settings.trust) * weight /
                          (gradient + static_cast<double>(settings.weight_decay) * weight);
      return static_cast<float>(std::min(rate, static_cast<double>(std::numeric_limits<float>::max())));
    }
    return settings.rate;
  }
};

namespace {

// Returns the shift with which a sum of squares must be computed again, from values times 2^shift; 0 if the sum is
// right. The square of a float32 is infinite for values from 2^64 on, and loses bits for values below 2^-63. `scale`:
// factor of the values so far. The shift for overflow leaves room for the sum of a block; the shift for underflow is
// for values below 2^-45.
int shift_for(double squares, float scale) {
  constexpr double least = 0x1p-90;
  if ((std::isfinite(squares) && squares >= least) || !std::isnormal(scale)) {
    return 0;
  }
  const int exponent = std::ilogb(scale);  // scale times 2^shift has to be a normal float32
  return std::isfinite(squares) ? std::min(100, 126 - exponent) : std::max(-72, -126 - exponent);
}

double squares_on_host(const void* source, DType dtype, std::size_t count, float scale) {
  const double squares = compute::sum_of_squares(source, dtype, count, scale);
  const int shift = shift_for(squares, scale);
  return shift == 0 ? squares
                    : std::ldexp(compute::sum_of_squares(source, dtype, count, std::ldexp(scale, shift)), -2 * shift);
}

// Returns the sums of squares of the gradients, then the sums of the weights. Changes the scales of sums that are
// computed again.
std::vector<double> squares_on_device(DeviceSteps& device, std::vector<DeviceSteps::SumOfSquares>& gradients,
                                      DType dtype, std::vector<DeviceSteps::SumOfSquares>& weights,
                                      compute::cuda::Stream stream) {
  std::vector<double> sums = device.sums_of_squares(gradients, dtype, weights, stream);
  std::vector<int> shifts;
  for (auto* const calls : {&gradients, &weights}) {
    for (DeviceSteps::SumOfSquares& call : *calls) {
      shifts.push_back(shift_for(sums[shifts.size()], call.scale));
      call.scale = std::ldexp(call.scale, shifts.back());
    }
  }
  if (std::any_of(shifts.begin(), shifts.end(), [](int shift) { return shift != 0; })) {
    sums = device.sums_of_squares(gradients, dtype, weights, stream);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] = std::ldexp(sums[i], -2 * shifts[i]);
    }
  }
  return sums;
}

void advance(compute::MomentumStep& step, std::size_t elements) {
  step.momentum = step.momentum == nullptr ? nullptr : step.momentum + elements;
}

void advance(compute::AdamStep& step, std::size_t elements) {
  step.mean += elements;
  step.mean_square += elements;
}

// Returns the step of a part of a tensor.
template <class Step>
Step part(Step step, std::size_t begin, std::size_t end, const std::byte* gradient) {
  step.weight += begin;
  if (step.parameter != nullptr) {
    step.parameter = static_cast<std::byte*>(step.parameter) + begin * size_of(step.parameter_dtype);
  }
  step.gradient = gradient;
  step.count = end - begin;
  advance(step, begin);
  return step;
}

std::string place_of(std::optional<int> device) {
  return device ? "on CUDA device " + std::to_string(*device) : std::string("in memory of the host");
}

}  // namespace

Optimizer::Optimizer(const std::vector<std::size_t>& counts, bool rate_inside, std::optional<int> device)
    : rate_inside_(rate_inside), device_(device) {
  for (const std::size_t count : counts) {
    parameters_.push_back({.count = count, .momentum = {}, .mean_square = {}, .master = {}});
  }
  if (device_) {
    on_device_ = std::make_unique<DeviceSteps>(*device_);
  }
}

void Optimizer::order(Stream stream) const {
  if (on_device_ != nullptr) {
    on_device_->order(stream);
  }
}

FloatArray& Optimizer::array(Parameter& parameter, FloatArray Parameter::* member) const {
  FloatArray& found = parameter.*member;
  if (found.size() != parameter.count) {
    found = FloatArray(parameter.count, device_);
  }
  return found;
}

void Optimizer::place(Numbers numbers, std::size_t tensor, std::span<float> memory) {
  Parameter& parameter = parameters_[tensor];
  if (device_ || memory.size() != parameter.count) {
    throw Error(ErrorKind::value, "memory for " + std::to_string(memory.size()) + " numbers of tensor " +
                                      std::to_string(tensor) + ", which has " + std::to_string(parameter.count) +
                                      " elements " + place_of(device_));
  }
  switch (numbers) {
    case Numbers::momentum:
      parameter.momentum = FloatArray(memory);
      break;
    case Numbers::mean_square:
      parameter.mean_square = FloatArray(memory);
      break;
    case Numbers::master:
      parameter.master = FloatArray(memory);
      break;
  }
}

void Optimizer::set_parameter(std::size_t tensor, std::byte* data, DType dtype, bool keep_master,
                              const std::optional<collective::Placement>& placement) {
  if (dtype != DType::float32 && dtype != DType::float16 && dtype != DType::bfloat16) {
    throw Error(ErrorKind::type, "weights are float32, float16 or bfloat16, not " + std::string(name_of(dtype)));
  }
  const std::optional<int> device = placement ? std::optional(placement->device) : std::nullopt;
  if (device != device_) {
    throw Error(ErrorKind::value, "the weights of tensor " + std::to_string(tensor) + " are " + place_of(device) +
                                      ", and the gradients of the optimizer " + place_of(device_));
  }
  Parameter& parameter = parameters_[tensor];
  parameter.data = data;
  parameter.dtype = dtype;
  if (dtype == DType::float32) {
    parameter.master = FloatArray();
  } else if (!keep_master || parameter.master.size() != parameter.count) {
    parameter.master = FloatArray(parameter.count, device_);
    cast(parameter.master.data(), DType::float32, data, dtype, parameter.count,
         placement ? placement->stream : nullptr);
  }
}

void Optimizer::round_master(std::size_t tensor) {
  const Parameter& parameter = parameters_[tensor];
  if (parameter.master.data() != nullptr && parameter.data != nullptr) {
    order(nullptr);
    cast(parameter.data, parameter.dtype, parameter.master.data(), DType::float32, parameter.count, nullptr);
  }
}

void Optimizer::cast(void* destination, DType destination_dtype, const void* source, DType source_dtype,
                     std::size_t count, Stream stream) const {
  if (!device_) {
    compute::cast(destination, destination_dtype, source, source_dtype, count, 1.0F);
    return;
  }
  const compute::cuda::UseDevice use(*device_);
  compute::cuda::runtime().cast(destination, destination_dtype, source, source_dtype, count, 1.0F, stream);
  compute::cuda::runtime().synchronize(stream);
}

void Optimizer::check_takes(const Update& update) const {
  if (update.device != device_) {
    throw Error(ErrorKind::value, "the gradients of the pool are " + place_of(update.device) +
                                      ", and those of the optimizer " + place_of(device_));
  }
  bool fits = update.tensors() == tensors();
  for (std::size_t tensor = 0; fits && tensor < tensors(); ++tensor) {
    fits = parameters_[tensor].count <= update.offsets[tensor + 1] - update.offsets[tensor];
  }
  if (!fits) {
    throw Error(ErrorKind::value, "the pool has other tensors than the optimizer");
  }
  if (device_ && !update.of_ranks.empty()) {
    throw Error(ErrorKind::value, "gradients of several ranks are in memory of the host, not " + place_of(device_));
  }
  if (update.dtype == DType::float64) {
    throw Error(ErrorKind::type, "gradients are float16, bfloat16 or float32, not float64");
  }
  if (update.means == used_) {
    throw Error(ErrorKind::value,
                "this optimizer has made a step with these gradients already: ready and wait average the next ones");
  }
}

void Optimizer::step(const Update& update, std::span<const std::optional<Settings>> settings, double gradient_scale,
                     Stream stream) {
  check_takes(update);
  step(Gradients{update}, settings, static_cast<float>(gradient_scale), stream);
  used_ = update.means;
}

void Optimizer::skip(const Update& update) {
  check_takes(update);
  used_ = update.means;
}

void Optimizer::step(const Gradients& gradients, std::span<const std::optional<Settings>> settings, float scale,
                     Stream stream) {
  if (settings.size() != tensors()) {
    throw Error(ErrorKind::value, "there are settings for " + std::to_string(settings.size()) + " tensors, and " +
                                      std::to_string(tensors()) + " tensors");
  }
  std::vector<Task> tasks;
  const bool is_whole = gradients.update.of_ranks.empty();
  for (std::size_t tensor = 0; tensor < tensors(); ++tensor) {
    const std::optional<Settings>& given = settings[tensor];
    if (given && given->trust > 0.0F && !is_whole) {
      throw Error(ErrorKind::value,
                  "LARS needs the norms of whole gradients, and those of several ranks are not added up");
    }
    if (given && parameters_[tensor].count > 0 && parameters_[tensor].data == nullptr) {
      throw Error(ErrorKind::value, "the weights of tensor " + std::to_string(tensor) + " are missing");
    }
    if (given && (given->adam || given->momentum != 0.0F)) {
      (void)momentum(tensor);  // allocates, and may throw: before anything is changed
    }
    if (given && given->adam) {
      (void)mean_square(tensor);
    }
    if (given) {
      tasks.push_back({parameters_[tensor], *given, gradients, tensor, given->maximize ? -scale : scale});
    }
  }
  if (device_) {
    step_on_device(tasks, gradients.dtype(), stream);
    return;
  }
  for (const Task& task : tasks) {
    step_on_host(task);
  }
}

// Returns the step of a whole tensor, without gradients. A step whose settings have no momentum leaves the momentum of
// earlier steps unchanged, as in PyTorch.
compute::MomentumStep Optimizer::momentum_step_of(const Task& task, float rate) const {
  const bool inside = rate_inside_ || task.is_local();  // a local rate changes from step to step
  const Parameter& parameter = task.parameter;
  return {.weight = task.weights(),
          .parameter = task.parameter_at(0),
          .parameter_dtype = parameter.dtype,
          .gradient = nullptr,
          .gradient_dtype = task.gradients.dtype(),
          .momentum = task.settings.momentum == 0.0F ? nullptr : parameter.momentum.data(),
          .count = parameter.count,
          .gradient_scale = task.scale,
          .weight_decay = task.settings.weight_decay,
          .factor = task.settings.momentum,
          .inner_rate = inside ? rate : 1.0F,
          .outer_rate = inside ? 1.0F : rate};
}

// Corrects the bias of the first updates in float64, as PyTorch does.
compute::AdamStep Optimizer::adam_step_of(const Task& task) {
  const Parameter& parameter = task.parameter;
  const Adam adam = task.settings.adam.value_or(Adam{});
  const auto updates = static_cast<double>(adam.updates);
  const auto rate = static_cast<double>(task.settings.rate);
  const auto decay = static_cast<double>(task.settings.weight_decay);
  const double bias_1 = 1.0 - std::pow(adam.beta_1, updates);
  const double bias_2 = 1.0 - std::pow(adam.beta_2, updates);
  return {.weight = task.weights(),
          .parameter = task.parameter_at(0),
          .parameter_dtype = parameter.dtype,
          .gradient = nullptr,
          .gradient_dtype = task.gradients.dtype(),
          .mean = parameter.momentum.data(),
          .mean_square = parameter.mean_square.data(),
          .count = parameter.count,
          .gradient_scale = task.scale,
          .weight_decay = adam.decoupled ? 0.0F : task.settings.weight_decay,
          .rate = static_cast<float>(rate / bias_1),
          .root = static_cast<float>(std::sqrt(bias_2)),
          .beta_1 = static_cast<float>(adam.beta_1),
          .alpha_1 = static_cast<float>(1.0 - adam.beta_1),
          .beta_2 = static_cast<float>(adam.beta_2),
          .alpha_2 = static_cast<float>(1.0 - adam.beta_2),
          .epsilon = static_cast<float>(adam.epsilon),
          .keep = adam.decoupled ? static_cast<float>(1.0 - rate * decay) : 1.0F};
}

void Optimizer::step_on_host(const Task& task) const {
  const auto make = [&task](const auto& whole) {
    task.gradients.each_gradient(task.tensor, task.parameter.count,
                                 [&](std::size_t begin, std::size_t end, const std::byte* gradient) {
                                   compute::step(part(whole, begin, end, gradient));
                                 });
  };
  if (task.settings.adam) {
    make(adam_step_of(task));
    return;
  }
  float rate = task.settings.rate;
  if (task.is_local()) {
    double squares = 0.0;
    task.each_part([&](std::size_t begin, std::size_t end) {
      squares += squares_on_host(task.gradient(begin), task.gradients.dtype(), end - begin, task.scale);
    });
    rate = task.local_rate(squares, squares_on_host(task.weights(), DType::float32, task.parameter.count, 1.0F));
  }
  make(momentum_step_of(task, rate));
}

// Computes the norms of all tensors together, so that the host waits once.
void Optimizer::step_on_device(const std::vector<Task>& tasks, DType dtype, Stream stream) {
  std::vector<DeviceSteps::SumOfSquares> gradients;
  std::vector<DeviceSteps::SumOfSquares> weights;
  std::vector<std::size_t> parts(tasks.size(), 0);  // number of gradient parts of each task
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const Task& task = tasks[i];
    if (task.is_local()) {
      task.each_part([&](std::size_t begin, std::size_t end) {
        gradients.push_back({task.gradient(begin), end - begin, task.scale});
        ++parts[i];
      });
      weights.push_back({task.weights(), task.parameter.count});
    }
  }
  std::vector<double> sums;
  if (!weights.empty()) {
    sums = squares_on_device(*on_device_, gradients, dtype, weights, stream);
  }
  auto of_gradients = sums.cbegin();
  auto of_weights = sums.cbegin() + static_cast<std::ptrdiff_t>(gradients.size());
  compute::StepVectors steps;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const auto add = [&steps, &task = tasks[i]]<class Step>(const Step& whole) {
      task.each_part([&](std::size_t begin, std::size_t end) {
        std::get<std::vector<Step>>(steps).push_back(part(whole, begin, end, task.gradient(begin)));
      });
    };
    if (tasks[i].settings.adam) {
      add(adam_step_of(tasks[i]));
      continue;
    }
    float rate = tasks[i].settings.rate;
    if (tasks[i].is_local()) {
      const auto end = of_gradients + static_cast<std::ptrdiff_t>(parts[i]);
      rate = tasks[i].local_rate(std::accumulate(of_gradients, end, 0.0), *of_weights++);
      of_gradients = end;
    }
    add(momentum_step_of(tasks[i], rate));
  }
  on_device_->run(steps, dtype, stream);
}

}  // namespace gradientflow::engine

// The step of momentum SGD, LARS, Adam or AdamW over the gradients of a pool: weights anywhere in memory, momentum
// here, and for weights of 16 bits float32 master weights, too (GradientFlow paper, sections 2.5, 3.2 and 4.2).
//
// All of that is in memory of the host, or all on one CUDA device. There, steps are put into a stream, and nobody waits
// for them; but the local rates of LARS are computed by the host, which waits for the norms in every step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "../../base/dtype.hpp"
#include "../../collective/call/call.hpp"
#include "../memory/float_array.hpp"
#include "device_steps.hpp"
#include "update.hpp"

namespace gradientflow::engine {

class Optimizer {
 public:
  using Stream = compute::cuda::Stream;  // of the device; not used where there is none

  // Adam, or with `decoupled` AdamW: its mean of gradients is the momentum.
  struct Adam {
    double beta_1;
    double beta_2;
    double epsilon;
    bool decoupled;         // whether weight decay makes the weights smaller by itself, and is not in the gradient
    std::uint64_t updates;  // of the tensor, with this one
  };

  // Of one tensor, in one step.
  struct Settings {
    float rate;
    float momentum;
    float weight_decay;
    // LARS: the local rate is trust * |weights| / (|gradient| + weight_decay * |weights|), or 1; 0: without.
    float trust;
    bool maximize = false;
    std::optional<Adam> adam = {};  // in place of momentum and trust
  };

  // `counts`: elements of each tensor, as in the pools whose gradients it takes. `rate_inside`: whether the learning
  // rate is in the momentum, as the paper has it, or outside, as PyTorch has it: the same while the rate is constant.
  // `device`: that of the weights and the pools; none: the host.
  Optimizer(const std::vector<std::size_t>& counts, bool rate_inside, std::optional<int> device = {});

  [[nodiscard]] std::size_t tensors() const { return parameters_.size(); }
  [[nodiscard]] std::size_t count(std::size_t tensor) const { return parameters_[tensor].count; }
  [[nodiscard]] std::optional<int> device() const { return device_; }

  // Where the weights of a tensor are: float32, float16 or bfloat16. Of those of 16 bits the master weights are taken
  // from there, unless `keep_master`; on a device, the host waits until they are, behind what is in the stream of
  // `placement`. Throws Error(type) for another dtype, and Error(value) for weights that are somewhere else.
  void set_parameter(std::size_t tensor, std::byte* data, DType dtype, bool keep_master,
                     const std::optional<collective::Placement>& placement = {});

  // Has these numbers of a tensor lie in this memory of the host, with the numbers that are there.
  enum class Numbers { momentum, mean_square, master };
  void place(Numbers numbers, std::size_t tensor, std::span<float> memory);

  // Makes weights of 16 bits what their master weights round to; on a device, the host waits for it.
  void round_master(std::size_t tensor);

  // One step of the tensors that have settings, with the gradients times `gradient_scale`; only the spans of the update
  // change, momentum included. Throws Error(value) where it has other tensors, or is somewhere else, or weights are
  // missing, or this optimizer has made its step with it: before anything is changed. On a device, gradients and
  // weights are those that are there once what is in the stream now is done.
  void step(const Update& update, std::span<const std::optional<Settings>> settings, double gradient_scale,
            Stream stream = nullptr);

  // In place of a step that is not to be made. Throws what `step` would of the update.
  void skip(const Update& update);

  // On a device: what is put into the stream from now on sees weights, momentum and master weights as the last step
  // leaves them.
  void order(Stream stream) const;

  [[nodiscard]] const FloatArray& momentum(std::size_t tensor) const { return parameters_[tensor].momentum; }
  [[nodiscard]] const FloatArray& master(std::size_t tensor) const { return parameters_[tensor].master; }
  // There from then on; `mean_square` is that of Adam.
  [[nodiscard]] FloatArray& momentum(std::size_t tensor) { return array(parameters_[tensor], &Parameter::momentum); }
  [[nodiscard]] FloatArray& mean_square(std::size_t tensor) {
    return array(parameters_[tensor], &Parameter::mean_square);
  }
  [[nodiscard]] FloatArray& master(std::size_t tensor) { return parameters_[tensor].master; }

 private:
  struct Parameter {
    std::size_t count;
    std::byte* data = nullptr;
    DType dtype = DType::float32;
    FloatArray momentum;     // none as long as it is 0
    FloatArray mean_square;  // the same
    FloatArray master;       // of weights of 16 bits
  };
  struct Gradients;

  struct Task;

  FloatArray& array(Parameter& parameter, FloatArray Parameter::* member) const;
  void check_takes(const Update& update) const;
  void step(const Gradients& gradients, std::span<const std::optional<Settings>> settings, float scale, Stream stream);
  void cast(void* destination, DType destination_dtype, const void* source, DType source_dtype, std::size_t count,
            Stream stream) const;
  void step_on_host(const Task& task) const;
  void step_on_device(const std::vector<Task>& tasks, DType dtype, Stream stream);
  [[nodiscard]] compute::MomentumStep momentum_step_of(const Task& task, float rate) const;
  [[nodiscard]] static compute::AdamStep adam_step_of(const Task& task);

  std::vector<Parameter> parameters_;
  Means used_ = no_means;  // by the last step
  bool rate_inside_;
  std::optional<int> device_;
  std::unique_ptr<DeviceSteps> on_device_;
};

}  // namespace gradientflow::engine

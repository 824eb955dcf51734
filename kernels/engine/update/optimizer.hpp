// Optimizer: the step of momentum SGD, LARS, Adam or AdamW over the gradients of a pool. The weights are anywhere in
// memory; the momentum, and for 16-bit weights the float32 master weights, are here (GradientFlow paper,
// sections 2.5, 3.2 and 4.2).
//
// All of these arrays are in host memory, or all on one CUDA device. On a device, steps are put into a stream without
// waiting. Only with LARS the host waits in every step for the norms, from which it computes the local rates.
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
  using Stream = compute::cuda::Stream;  // stream of the device; unused on the host

  // Coefficients of Adam, or of AdamW if `decoupled`. The mean of the gradients is kept as the momentum.
  struct Adam {
    double beta_1;
    double beta_2;
    double epsilon;
    bool decoupled;         // true: weight decay shrinks the weights directly, and is not added to the gradient
    std::uint64_t updates;  // updates of the tensor, including this one
  };

  // Settings of one tensor in one step.
  struct Settings {
    float rate;
    float momentum;
    float weight_decay;
    // LARS: the local rate is trust * |weights| / (|gradient| + weight_decay * |weights|), 1 if a norm is 0. 0: no
    // LARS.
    float trust;
    bool maximize = false;
    std::optional<Adam> adam = {};  // instead of momentum and trust
  };

  // `counts`: elements of each tensor, as in the pools whose gradients the optimizer takes. `rate_inside`: true if the
  // learning rate is in the momentum, as in the paper; false if it is outside, as in PyTorch. The two give the same
  // weights while the rate is constant. `device`: device of the weights and the pools; none: the host.
  Optimizer(const std::vector<std::size_t>& counts, bool rate_inside, std::optional<int> device = {});

  [[nodiscard]] std::size_t tensors() const { return parameters_.size(); }
  [[nodiscard]] std::size_t count(std::size_t tensor) const { return parameters_[tensor].count; }
  [[nodiscard]] std::optional<int> device() const { return device_; }

  // Sets the address of a tensor's weights: float32, float16 or bfloat16. The master weights of 16-bit weights are
  // copied from there, unless `keep_master`; on a device, after the work in the stream of `placement`, and the host
  // waits for the copy. Throws Error(type) for another dtype, and Error(value) for weights that are not on the
  // optimizer's device.
  void set_parameter(std::size_t tensor, std::byte* data, DType dtype, bool keep_master,
                     const std::optional<collective::Placement>& placement = {});

  // Keeps the given numbers of a tensor in `memory`, which is on the host; the contents of `memory` become their
  // values.
  enum class Numbers { momentum, mean_square, master };
  void place(Numbers numbers, std::size_t tensor, std::span<float> memory);

  // Sets 16-bit weights to their rounded master weights; on a device, the host waits for the work.
  void round_master(std::size_t tensor);

  // Makes a step of the tensors that have settings, with the gradients times `gradient_scale`; weights and momentum
  // change only in the spans of the update. Before anything is changed, throws Error(value) if the update has other
  // tensors or is on another device, if weights are missing, or if this optimizer has used the update already, and
  // Error(type) for gradients in float64. On a device, the step runs after the work in the stream.
  void step(const Update& update, std::span<const std::optional<Settings>> settings, double gradient_scale,
            Stream stream = nullptr);

  // Counts the update as used without making a step. Throws as `step` does for an update that does not fit.
  void skip(const Update& update);

  // Makes later work of the stream, on a device, see the weights, momentum and master weights of the last step.
  void order(Stream stream) const;

  [[nodiscard]] const FloatArray& momentum(std::size_t tensor) const { return parameters_[tensor].momentum; }
  [[nodiscard]] const FloatArray& master(std::size_t tensor) const { return parameters_[tensor].master; }
  // Return arrays that are allocated on first use; `mean_square` is for Adam.
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
    FloatArray momentum;     // empty until first used
    FloatArray mean_square;  // empty until first used
    FloatArray master;       // master weights of 16-bit weights
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
  Means used_ = no_means;  // means used by the last step
  bool rate_inside_;
  std::optional<int> device_;
  std::unique_ptr<DeviceSteps> on_device_;
};

}  // namespace gradientflow::engine

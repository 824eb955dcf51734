// The step of momentum SGD or LARS over the gradients of a pool: weights anywhere in memory, momentum here, and for
// weights of 16 bits float32 master weights, too (GradientFlow paper, sections 2.5, 3.2 and 4.2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "../base/dtype.hpp"
#include "float_array.hpp"
#include "gradient_pool.hpp"
#include "sparse_pool.hpp"

namespace gradientflow::engine {

class Optimizer {
 public:
  // Of one tensor, in one step.
  struct Settings {
    float rate;
    float momentum;
    float weight_decay;
    float
        trust;  // LARS: the local rate is trust * |weights| / (|gradient| + weight_decay * |weights|), or 1; 0: without
  };

  // `counts`: elements of each tensor, as in the pools whose gradients it takes. `rate_inside`: whether the learning
  // rate is in the momentum, as the paper has it, or outside, as PyTorch has it: the same while the rate is constant.
  Optimizer(const std::vector<std::size_t>& counts, bool rate_inside);

  [[nodiscard]] std::size_t tensors() const { return parameters_.size(); }
  [[nodiscard]] std::size_t count(std::size_t tensor) const { return parameters_[tensor].count; }

  // Where the weights of a tensor are: float32, float16 or bfloat16. Of those of 16 bits the master weights are taken
  // from there, unless `keep_master`. Throws Error(type) for another dtype.
  void set_parameter(std::size_t tensor, std::byte* data, DType dtype, bool keep_master);

  // Makes weights of 16 bits what their master weights round to.
  void round_master(std::size_t tensor);

  // One step of the tensors that have settings, with the gradients times `gradient_scale`. Of a sparse pool those steps
  // only reach what the last iteration has sent, momentum included, unless `everywhere`. Throws Error(value) where the
  // pool has other tensors, or weights are missing: before anything is changed.
  void step(const GradientPool& pool, std::span<const std::optional<Settings>> settings, double gradient_scale);
  void step(const SparsePool& pool, std::span<const std::optional<Settings>> settings, double gradient_scale,
            bool everywhere);

  [[nodiscard]] const FloatArray& momentum(std::size_t tensor) const { return parameters_[tensor].momentum; }
  [[nodiscard]] const FloatArray& master(std::size_t tensor) const { return parameters_[tensor].master; }
  [[nodiscard]] FloatArray& momentum(std::size_t tensor);  // there from then on
  [[nodiscard]] FloatArray& master(std::size_t tensor) { return parameters_[tensor].master; }

 private:
  struct Parameter {
    std::size_t count;
    std::byte* data = nullptr;
    DType dtype = DType::float32;
    FloatArray momentum;  // none as long as it is 0
    FloatArray master;    // of weights of 16 bits
  };
  struct Gradients;

  void step(const Gradients& gradients, std::span<const std::optional<Settings>> settings, float scale);
  void step_of(Parameter& parameter, const Settings& settings, const Gradients& gradients, std::size_t tensor,
               float scale);

  std::vector<Parameter> parameters_;
  bool rate_inside_;
};

}  // namespace gradientflow::engine

// Work of a top-k pool on the elements of a layer. Results have the same bits on the host and on a CUDA device. Blocks
// are in memory of the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "../../compute/cuda/stream.hpp"
#include "top_k_plan.hpp"

namespace gradientflow::engine {

// Selection rule for entries, the same in all layers.
struct Selection {
  compute::Select::How how = compute::Select::How::sampled;
  float scale = 1.0F;     // factor of gradients: 1 / loss scale
  float momentum = 0.0F;  // momentum of velocities, if there are any
  bool masking = true;
  double clip = 0.0;  // largest norm of a layer's gradient; 0: no limit
};

struct LayerJob {
  const TopKLayer& layer;
  std::byte* gradient;
  bool clear;  // true: zero the gradient, unless the layer is dense
  DType dtype;
  const float* residual;  // nullptr: zeros
  float* next_residual;
  const float* velocity;  // nullptr: zeros
  float* next_velocity;   // nullptr: there is none
  std::uint64_t seed;
  float threshold;
  std::byte* block;
};

struct LayerResult {
  compute::Selected selected;
  bool keeps;  // true if next_residual has a residual; otherwise there is none
};

// Work on the host. The derived class for devices overrides the functions that touch elements. The work of a function
// is done when the function returns.
class LayerWork {
 public:
  using Stream = compute::cuda::Stream;

  // `layers`: number of layers.
  static std::unique_ptr<LayerWork> make(std::optional<int> device, std::size_t layers);
  LayerWork() = default;
  LayerWork(const LayerWork&) = delete;
  LayerWork& operator=(const LayerWork&) = delete;
  virtual ~LayerWork() = default;

  // Selects the entries of a layer to be sent. For a dense layer, adds the residual to the gradient instead: the whole
  // sum is sent, except the parts that are lost in rounding to 16 bits or exceed float16.
  [[nodiscard]] LayerResult select_from(const LayerJob& job, const Selection& how);

  // Forward to the functions of compute.
  virtual std::size_t combine(const compute::Combine& call);
  [[nodiscard]] virtual std::size_t count_nonfinite(const void* source, DType dtype, std::size_t count);

  // Notes that a tensor of the layer, perhaps its last tensor, is ready in this stream. From any thread; for each
  // layer, one thread at a time.
  virtual void note_ready(std::size_t /*layer*/, bool /*is_last*/, Stream /*stream*/) {}
  // Waits until the layer is ready, as noted since the last forget().
  virtual void wait_for(std::size_t /*layer*/) {}
  virtual void forget() {}
  // Returns how many seconds ago each layer became ready; empty on the host, which knows the times itself.
  [[nodiscard]] virtual std::vector<double> seconds_since_ready() { return {}; }

  // stream() returns the stream for calls on dense layers; finish() waits for that stream.
  [[nodiscard]] virtual Stream stream() const { return nullptr; }
  virtual void finish() {}

 protected:
  virtual compute::Selected select(const compute::Select& call);
  [[nodiscard]] virtual double sum_of_squares(const void* source, DType dtype, std::size_t count, float scale);
  // Sets gradient = (velocity + residual) / how.scale, where velocity = momentum * velocity + gradient * scale; without
  // momentum correction, velocity = gradient * scale. Computes in next_residual. With 16-bit gradients
  // or a limit, leaves there the difference between the sum and the gradient.
  virtual void add_kept(const LayerJob& job, const Selection& how, float scale);

 private:
  [[nodiscard]] float scale_of(const LayerJob& job, const Selection& how);
};

}  // namespace gradientflow::engine

// What a top-k pool has done to the elements of a layer: the same work, with the same bits, on the host and on a CUDA
// device. Blocks are in memory of the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "../../compute/cuda/stream.hpp"
#include "top_k_plan.hpp"

namespace gradientflow::engine {

// How entries are selected, of all layers.
struct Selection {
  compute::Select::How how = compute::Select::How::sampled;
  float scale = 1.0F;     // of gradients: 1 / loss scale
  float momentum = 0.0F;  // of velocities, where there are some
  bool masking = true;
  double clip = 0.0;  // the largest norm of a layer's gradient; 0: any
};

struct LayerJob {
  const TopKLayer& layer;
  std::byte* gradient;
  bool clear;  // the gradient of a layer that is not dense
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
  bool keeps;  // next_residual has what is left; or nothing is
};

// On the host. Its twin overrides what touches the elements; whatever returns there is done.
class LayerWork {
 public:
  using Stream = compute::cuda::Stream;

  // Of so many layers.
  static std::unique_ptr<LayerWork> make(std::optional<int> device, std::size_t layers);
  LayerWork() = default;
  LayerWork(const LayerWork&) = delete;
  LayerWork& operator=(const LayerWork&) = delete;
  virtual ~LayerWork() = default;

  // Selects what is sent of a layer, or adds to the gradient of a dense one what it has kept: all of it is sent, but
  // for what rounding to 16 bits takes, and what float16 does not hold.
  [[nodiscard]] LayerResult select_from(const LayerJob& job, const Selection& how);

  // As those of compute.
  virtual std::size_t combine(const compute::Combine& call);
  [[nodiscard]] virtual std::size_t count_nonfinite(const void* source, DType dtype, std::size_t count);

  // A tensor of the layer is ready in this stream, perhaps its last one. From any thread, one at a time for each layer.
  virtual void note_ready(std::size_t /*layer*/, bool /*is_last*/, Stream /*stream*/) {}
  // Waits until the layer is, as was noted since the last forget().
  virtual void wait_for(std::size_t /*layer*/) {}
  virtual void forget() {}
  // How many seconds ago the layers became so; empty where the host knows.
  [[nodiscard]] virtual std::vector<double> seconds_since_ready() { return {}; }

  // What calls on dense layers are put into, and waited for.
  [[nodiscard]] virtual Stream stream() const { return nullptr; }
  virtual void finish() {}

 protected:
  virtual compute::Selected select(const compute::Select& call);
  [[nodiscard]] virtual double sum_of_squares(const void* source, DType dtype, std::size_t count, float scale);
  // gradient = (velocity + residual) / scale, with the velocity momentum * velocity + gradient * scale where there is
  // one. next_residual is the room to compute in, and has what is left.
  virtual void add_kept(const LayerJob& job, const Selection& how, float scale);

 private:
  [[nodiscard]] float scale_of(const LayerJob& job, const Selection& how);
};

}  // namespace gradientflow::engine

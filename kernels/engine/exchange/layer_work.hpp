// What a top-k pool has done to the elements of a layer, on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

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

// Selects what is sent of a layer, or adds to the gradient of a dense one what it has kept: all of it is sent, but for
// what rounding to 16 bits takes, and what float16 does not hold.
[[nodiscard]] LayerResult select_from(const LayerJob& job, const Selection& how);

}  // namespace gradientflow::engine

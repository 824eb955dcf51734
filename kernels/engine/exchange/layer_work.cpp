#include "layer_work.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "../../compute/chunks.hpp"
#include "../../compute/kernels.hpp"
#include "../../compute/sum_of_squares.hpp"
#include "../../compute/top_k_rules.hpp"
#include "device_layer_work.hpp"

namespace gradientflow::engine {
namespace {

void add(float* to, const float* numbers, std::size_t count) {
  const std::array<void*, 1> targets = {to};
  const std::array<const void*, 2> sources = {to, numbers};
  compute::reduce(targets, sources, count, {.dtype = DType::float32, .op = ReduceOp::sum});
}

// Returns the largest magnitude of a gradient that is float16 or is sent as float16. For a dense layer this limit
// leaves room for the rounding of partial means as they pass through hundreds of ranks.
float limit_of(const LayerJob& job) {
  constexpr float largest_averaged = 61440.0F;
  if (job.layer.dense && (job.dtype == DType::float16 || job.layer.block.values == DType::float16)) {
    return largest_averaged;
  }
  return job.dtype == DType::float16 ? compute::largest_float16 : std::numeric_limits<float>::infinity();
}

bool leaves_some(const LayerJob& job) { return job.dtype != DType::float32 || std::isfinite(limit_of(job)); }

// Sets gradient = numbers / scale, rounded to its dtype and no larger than the limit; leaves the difference in
// `numbers`.
void write_gradient(const LayerJob& job, float* numbers, float scale) {
  const float limit = limit_of(job);
  std::array<float, 1024> part;
  for (std::size_t begin = 0; begin < job.layer.count; begin += part.size()) {
    const std::size_t count = std::min(part.size(), job.layer.count - begin);
    float* const from = numbers + begin;
    std::byte* const gradient = job.gradient + begin * size_of(job.dtype);
    compute::cast(part.data(), DType::float32, from, DType::float32, count, 1.0F / scale);
    for (std::size_t i = 0; i < count; ++i) {
      part[i] = std::isfinite(from[i]) ? std::clamp(part[i], -limit, limit) : part[i];
    }
    compute::cast(gradient, job.dtype, part.data(), DType::float32, count, 1.0F);
    if (leaves_some(job)) {
      compute::cast(part.data(), DType::float32, gradient, job.dtype, count, -scale);
      add(from, part.data(), count);
    }
  }
}

}  // namespace

std::unique_ptr<LayerWork> LayerWork::make(std::optional<int> device, std::size_t layers) {
  if (device) {
    return std::make_unique<DeviceLayerWork>(*device, layers);
  }
  return std::make_unique<LayerWork>();
}

std::size_t LayerWork::combine(const compute::Combine& call) { return compute::combine(call); }

std::size_t LayerWork::count_nonfinite(const void* source, DType dtype, std::size_t count) {
  return compute::count_nonfinite(source, dtype, count);
}

compute::Selected LayerWork::select(const compute::Select& call) { return compute::select(call); }

double LayerWork::sum_of_squares(const void* source, DType dtype, std::size_t count, float scale) {
  return compute::sum_of_squares(source, dtype, count, scale);
}

// Returns the factor of the gradient that makes its norm no larger than `clip` (DGC paper, section 3.2).
float LayerWork::scale_of(const LayerJob& job, const Selection& how) {
  if (how.clip == 0.0) {
    return how.scale;
  }
  const double norm = std::sqrt(sum_of_squares(job.gradient, job.dtype, job.layer.count, how.scale));
  return norm > how.clip && std::isfinite(norm) ? static_cast<float>(how.scale * (how.clip / norm)) : how.scale;
}

void LayerWork::add_kept(const LayerJob& job, const Selection& how, float scale) {
  const std::size_t count = job.layer.count;
  const float* first = job.residual;
  if (job.velocity != nullptr) {
    compute::cast(job.next_velocity, DType::float32, job.velocity, DType::float32, count, how.momentum);
    first = job.next_velocity;
  }
  compute::update_residual({.gradient = job.gradient,
                            .dtype = job.dtype,
                            .residual = first,
                            .next_residual = job.next_residual,
                            .count = count,
                            .scale = scale});
  if (job.next_velocity != nullptr) {
    compute::copy(job.next_velocity, job.next_residual, count * sizeof(float), compute::Store::cached);
    if (job.residual != nullptr) {
      add(job.next_residual, job.residual, count);
    }
  }
  write_gradient(job, job.next_residual, how.scale);
}

LayerResult LayerWork::select_from(const LayerJob& job, const Selection& how) {
  const float scale = scale_of(job, how);
  if (!job.layer.dense) {
    const compute::Select call{.gradient = job.gradient,
                               .dtype = job.dtype,
                               .scale = scale,
                               .residual = job.residual,
                               .next_residual = job.next_residual,
                               .velocity = job.velocity,
                               .next_velocity = job.next_velocity,
                               .momentum = how.momentum,
                               .masking = how.masking,
                               .clear = job.clear,
                               .how = how.how,
                               .seed = job.seed,
                               .limit = limit_of(job) * how.scale,
                               .threshold = job.threshold,
                               .block = job.layer.block,
                               .data = job.block};
    return {.selected = select(call), .keeps = true};
  }
  const bool adds = job.residual != nullptr || job.next_velocity != nullptr || scale != how.scale;
  if (adds) {
    add_kept(job, how, scale);
  }
  return {.selected = {.sent = job.layer.elements,
                       .threshold = 0.0F,
                       .nonfinite = count_nonfinite(job.gradient, job.dtype, job.layer.count)},
          .keeps = adds && leaves_some(job)};
}

}  // namespace gradientflow::engine

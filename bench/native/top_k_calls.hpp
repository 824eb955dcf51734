// Makes the calls of kernels/compute/top_k.hpp from Python's arguments, for the CPU and for devices alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <gradientflow/base/dtype.hpp>
#include <gradientflow/compute/top_k.hpp>
#include <string>
#include <tuple>

#include "native.hpp"

namespace gradientflow::native {

// (gradient, dtype, residual, next_residual, velocity, next_velocity, block, data, how, scale, momentum, masking, seed,
// threshold)
using SelectFields =
    std::tuple<std::uintptr_t, std::string, std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t,
               compute::EntryBlock, std::uintptr_t, std::string, float, float, bool, std::uint64_t, float>;

inline compute::Select select_call(const SelectFields& fields) {
  using How = compute::Select::How;
  const auto& [gradient, dtype, residual, next_residual, velocity, next_velocity, block, data, how, scale, momentum,
               masking, seed, threshold] = fields;
  return {.gradient = pointer_to(gradient),
          .dtype = dtype_from_name(dtype),
          .scale = scale,
          .residual = pointer_to<const float>(residual),
          .next_residual = pointer_to<float>(next_residual),
          .velocity = pointer_to<const float>(velocity),
          .next_velocity = pointer_to<float>(next_velocity),
          .momentum = momentum,
          .masking = masking,
          .how = how == "exact" ? How::exact : (how == "sampled" ? How::sampled : How::random),
          .seed = seed,
          .threshold = threshold,
          .block = block,
          .data = pointer_to<std::byte>(data)};
}

}  // namespace gradientflow::native

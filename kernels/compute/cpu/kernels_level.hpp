// Table of the level that this translation unit is compiled for. Only kernels_<level>.cpp include this file.
#pragma once

#include "cast_kernel.hpp"
#include "chunk_kernel.hpp"
#include "copy_kernel.hpp"
#include "float8.hpp"
#include "nonfinite_kernel.hpp"
#include "norm_kernel.hpp"
#include "reduce_kernel.hpp"
#include "step_kernel.hpp"
#include "table.hpp"
#include "top_k_kernel.hpp"

namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE {

// Sums and products of integers wrap around, so they are computed unsigned. A bool is a byte, 0 or 1, of which the
// maximum is "or" and the minimum "and".
constinit const KernelTable kernels = {
    .reduce =
        {
            // sum, mean, max, min, prod of float16, bfloat16, float32, float64, int8, uint8, int32, int64, bool
            {reduce<Float16, Sum>, reduce_mean<Float16>, reduce<Float16, Maximum>, reduce<Float16, Minimum>,
             reduce<Float16, Product>},
            {reduce<BFloat16, Sum>, reduce_mean<BFloat16>, reduce<BFloat16, Maximum>, reduce<BFloat16, Minimum>,
             reduce<BFloat16, Product>},
            {reduce<Float32, Sum>, reduce_mean<Float32>, reduce<Float32, Maximum>, reduce<Float32, Minimum>,
             reduce<Float32, Product>},
            {reduce<Float64, Sum>, reduce_mean<Float64>, reduce<Float64, Maximum>, reduce<Float64, Minimum>,
             reduce<Float64, Product>},
            {reduce<Plain<std::uint8_t>, Sum>, nullptr, reduce<Plain<std::int8_t>, Maximum>,
             reduce<Plain<std::int8_t>, Minimum>, reduce<Plain<std::uint8_t>, Product>},
            {reduce<Plain<std::uint8_t>, Sum>, nullptr, reduce<Plain<std::uint8_t>, Maximum>,
             reduce<Plain<std::uint8_t>, Minimum>, reduce<Plain<std::uint8_t>, Product>},
            {reduce<Plain<std::uint32_t>, Sum>, nullptr, reduce<Plain<std::int32_t>, Maximum>,
             reduce<Plain<std::int32_t>, Minimum>, reduce<Plain<std::uint32_t>, Product>},
            {reduce<Plain<std::uint64_t>, Sum>, nullptr, reduce<Plain<std::int64_t>, Maximum>,
             reduce<Plain<std::int64_t>, Minimum>, reduce<Plain<std::uint64_t>, Product>},
            {nullptr, nullptr, reduce<Plain<std::uint8_t>, Maximum>, reduce<Plain<std::uint8_t>, Minimum>, nullptr},
        },
    .cast =
        {
            {cast<Float16, Float16>, cast<Float16, BFloat16>, cast<Float16, Float32>},
            {cast<BFloat16, Float16>, cast<BFloat16, BFloat16>, cast<BFloat16, Float32>},
            {cast<Float32, Float16>, cast<Float32, BFloat16>, cast<Float32, Float32>},
        },
    .to_float8 = cast<Float8, Float32>,
    .from_float8 = cast<Float32, Float8>,
    .largest_finite = largest_finite,
    .count_nonfinite = {count_nonfinite<std::uint16_t, 0x7c00u>, count_nonfinite<std::uint16_t, 0x7f80u>,
                        count_nonfinite<std::uint32_t, 0x7f800000u>},
    .copy = {copy<false>, copy<true>},
    .update_residual = {update_residual<Float16>, update_residual<BFloat16>, update_residual<Float32>},
    .gather = {gather<Float16>, gather<BFloat16>, gather<Float32>},
    .scatter = {scatter<Float16>, scatter<BFloat16>, scatter<Float32>},
    .sum_of_squares = {sum_of_squares<Float16>, sum_of_squares<BFloat16>, sum_of_squares<Float32>},
    .steps = all_steps(AllSteps()),
    .correct = {correct<Float16>, correct<BFloat16>, correct<Float32>},
    .scan = scan,
};

}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE

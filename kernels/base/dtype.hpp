// Element types and reduction operators of the collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gradientflow {

enum class DType : std::uint8_t { float16, bfloat16, float32, float64, int8, uint8, int32, int64, boolean };
inline constexpr int dtype_count = 9;

enum class ReduceOp : std::uint8_t { sum, mean, max, min, prod };
inline constexpr int reduce_op_count = 5;

[[nodiscard]] std::size_t size_of(DType dtype);       // bytes of one element
[[nodiscard]] std::string_view name_of(DType dtype);  // "float32", ..., "bool"
[[nodiscard]] std::string_view name_of(ReduceOp op);  // "sum", ...
[[nodiscard]] bool is_floating(DType dtype);
[[nodiscard]] DType dtype_from_name(std::string_view name);         // throws Error(type) with the supported names
[[nodiscard]] ReduceOp reduce_op_from_name(std::string_view name);  // throws Error(value) with the supported names

// Returns the index of float16, bfloat16 or float32 among these three. Throws Error(type) for another dtype, with a
// message that begins with `sentence`.
[[nodiscard]] std::size_t index_among_floats(DType dtype, const char* sentence);

// Throws Error(type) unless op is defined on dtype: mean needs a floating dtype; bool has only max and min.
void check_reducible(DType dtype, ReduceOp op);

}  // namespace gradientflow

// Wires: the formats to which float32 values are rounded on their way between nodes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "dtype.hpp"

namespace gradientflow {

enum class Wire : std::uint8_t { float32, float16, bfloat16, float8_e4m3 };

// A segment, the values of one message, is a header and its elements.
struct WireTraits {
  std::string_view name;
  std::size_t element;         // bytes
  std::size_t header;          // bytes
  std::optional<DType> dtype;  // dtype of an element; none if its value depends on the header, too
};

// In the order of enum class Wire; Python reads it as gradientflow.wires.
inline constexpr std::array<WireTraits, 4> wires = {{
    {.name = "float32", .element = 4, .header = 0, .dtype = DType::float32},
    {.name = "float16", .element = 2, .header = 0, .dtype = DType::float16},
    {.name = "bfloat16", .element = 2, .header = 0, .dtype = DType::bfloat16},
    {.name = "float8_e4m3", .element = 1, .header = sizeof(float), .dtype = {}},  // the header is a scale
}};

[[nodiscard]] constexpr const WireTraits& traits_of(Wire wire) { return wires[static_cast<std::size_t>(wire)]; }
[[nodiscard]] Wire wire_from_name(std::string_view name);  // throws Error(value) with the names

[[nodiscard]] Wire wire_of(DType dtype);  // the wire with elements of this dtype; throws as wire_from_name does

// Returns the dtype of values that travel independently of each other. Throws Error(value) if the wire has no such
// dtype; `who`, the sender of the values, begins the message.
[[nodiscard]] DType dtype_of(Wire wire, std::string_view who);

// Returns the wire for a tensor of `dtype`: `wire`, or none if it would not round the values. Throws Error(type) unless
// the dtype is float32 or no wider than the wire.
[[nodiscard]] std::optional<Wire> rounding_wire(std::optional<Wire> wire, DType dtype);

// segment_bytes() returns the bytes of a segment of `count` values. segment_values() returns the largest number of
// values in a segment of `bytes` bytes. Without a wire, elements have the tensor's dtype.
[[nodiscard]] std::size_t segment_bytes(std::optional<Wire> wire, DType dtype, std::size_t count);
[[nodiscard]] std::size_t segment_values(std::optional<Wire> wire, DType dtype, std::size_t bytes);

}  // namespace gradientflow

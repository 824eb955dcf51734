#include "../wire.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "select.hpp"
#include "table.hpp"

namespace gradientflow::compute {
namespace {

constexpr float top = 256;  // largest finite element: values up to it are rounded by at most top / 32

const std::size_t float32 = static_cast<std::size_t>(DType::float32);

void encode_with(const KernelTable& table, Wire wire, std::byte* segment, const std::byte* values, std::size_t count,
                 float factor) {
  if (count == 0) {
    return;
  }
  if (const auto dtype = traits_of(wire).dtype) {
    table.cast[static_cast<std::size_t>(*dtype)][float32](segment, values, count, factor);
    return;
  }
  const float scale = std::max(table.largest_finite(values, count) * factor / top, std::numeric_limits<float>::min());
  std::memcpy(segment, &scale, sizeof scale);
  table.to_float8(segment + sizeof scale, values, count, factor / scale);
}

void decode_with(const KernelTable& table, Wire wire, std::byte* values, const std::byte* segment, std::size_t count,
                 float factor) {
  if (count == 0) {
    return;
  }
  if (const auto dtype = traits_of(wire).dtype) {
    table.cast[float32][static_cast<std::size_t>(*dtype)](values, segment, count, factor);
    return;
  }
  float scale = 0;
  std::memcpy(&scale, segment, sizeof scale);
  table.from_float8(values, segment + sizeof scale, count, scale * factor);
}

}  // namespace

void encode(Wire wire, std::byte* segment, const std::byte* values, std::size_t count, float factor) {
  encode_with(active_table(), wire, segment, values, count, factor);
}

void decode(Wire wire, std::byte* values, const std::byte* segment, std::size_t count, float factor) {
  decode_with(active_table(), wire, values, segment, count, factor);
}

void encode_at(SimdLevel level, Wire wire, std::byte* segment, const std::byte* values, std::size_t count,
               float factor) {
  encode_with(table_at(level), wire, segment, values, count, factor);
}

void decode_at(SimdLevel level, Wire wire, std::byte* values, const std::byte* segment, std::size_t count,
               float factor) {
  decode_with(table_at(level), wire, values, segment, count, factor);
}

}  // namespace gradientflow::compute

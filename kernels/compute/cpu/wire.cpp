#include "../wire.hpp"

#include "../kernels.hpp"

namespace gradientflow::compute {

void encode(Wire wire, std::byte* segment, const std::byte* values, std::size_t count, float factor) {
  cast(segment, dtype_of(wire, "a segment"), values, DType::float32, count, factor);
}

void decode(Wire wire, std::byte* values, const std::byte* segment, std::size_t count, float factor) {
  cast(values, DType::float32, segment, dtype_of(wire, "a segment"), count, factor);
}

}  // namespace gradientflow::compute

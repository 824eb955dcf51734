// Element types as the kernels see them: how many bytes of memory make one vector of values, and how the values are
// loaded and stored. 16-bit floats are stored narrow and computed as float32; all others are computed as they are.
#pragma once

#include "half.hpp"

namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE {
namespace {

template <class T>
struct Plain {
  using Value = Vector<T>;
  static constexpr std::size_t size = sizeof(T);         // bytes of one element
  static constexpr std::size_t bytes = sizeof(Value);    // bytes of one vector of elements
  static constexpr std::size_t lanes = bytes / size;     // elements in one vector

  [[gnu::always_inline]] static Value load(const std::byte* address) {
    return GRADIENTFLOW_SIMD_NAMESPACE::load<Value>(address);
  }
  template <bool streaming>
  [[gnu::always_inline]] static void store(std::byte* address, Value value) {
    GRADIENTFLOW_SIMD_NAMESPACE::store<streaming>(address, value);
  }
};

template <Floats widen_halves(Halves), Halves narrow_floats(Floats)>
struct Narrow {
  using Value = Floats;
  static constexpr std::size_t size = sizeof(std::uint16_t);
  static constexpr std::size_t bytes = sizeof(Halves);
  static constexpr std::size_t lanes = bytes / size;

  [[gnu::always_inline]] static Value load(const std::byte* address) {
    return widen_halves(GRADIENTFLOW_SIMD_NAMESPACE::load<Halves>(address));
  }
  template <bool streaming>
  [[gnu::always_inline]] static void store(std::byte* address, Value value) {
    GRADIENTFLOW_SIMD_NAMESPACE::store<streaming>(address, narrow_floats(value));
  }
};

using Float16 = Narrow<float_from_float16, float16_from_float>;
using BFloat16 = Narrow<float_from_bfloat16, bfloat16_from_float>;
using Float32 = Plain<float>;
using Float64 = Plain<double>;

}  // namespace
}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE

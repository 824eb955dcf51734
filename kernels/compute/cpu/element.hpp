// Element types of the kernels: conversion of a vector of memory to values for computing, and back.
//
// A group is the values of one vector of memory. For most types a group is that vector. The 16-bit floats are computed
// as float32, so their groups have two parts. The result of a reduction does not depend on the part in which an element
// is, so the parts are chosen for speed: the lower and the upper half of each 32-bit word need no shuffle. If the order
// matters, load_ordered and store_ordered convert one vector of float32 at a time.
#pragma once

#include "half.hpp"

namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE {
namespace {

template <class V>
constexpr bool is_float = false;
template <>
constexpr bool is_float<Vector<float>> = true;
template <>
constexpr bool is_float<Vector<double>> = true;

template <class V, std::size_t number>
struct Group {
  static constexpr std::size_t parts = number;
  V part[number];
};

template <class T>
struct Plain {
  using Scalar = T;  // type of computed values
  using Values = Group<Vector<T>, 1>;
  static constexpr std::size_t size = sizeof(T);  // bytes of one element

  [[gnu::always_inline]] static Values load_group(const std::byte* address) { return {{load<Vector<T>>(address)}}; }

  template <bool streaming>
  [[gnu::always_inline]] static void store_group(std::byte* address, const Values& values) {
    store<streaming>(address, values.part[0]);
  }

  [[gnu::always_inline]] static Vector<T> load_ordered(const std::byte* address) { return load<Vector<T>>(address); }
  [[gnu::always_inline]] static void store_ordered(std::byte* address, Vector<T> values) {
    store<false>(address, values);
  }
};

template <class Format>
struct Narrow {
  using Scalar = float;
  using Values = Group<Floats, 2>;
  static constexpr std::size_t size = sizeof(std::uint16_t);

  [[gnu::always_inline]] static Values load_group(const std::byte* address) {
    const Words words = load<Words>(address);
    return {{Format::to_float(words & 0xffffu), Format::to_float(words >> 16)}};
  }

  template <bool streaming>
  [[gnu::always_inline]] static void store_group(std::byte* address, const Values& values) {
    store<streaming>(address, Format::from_float(values.part[0]) | (Format::from_float(values.part[1]) << 16));
  }

  [[gnu::always_inline]] static Floats load_ordered(const std::byte* address) {
    return Format::to_float(widen(load<Halves>(address)));
  }
  [[gnu::always_inline]] static void store_ordered(std::byte* address, Floats values) {
    store<false>(address, narrow(Format::from_float(values)));
  }
};

#if defined(GRADIENTFLOW_HAS_F16C)
struct Float16 {
  using Scalar = float;
  using Values = Group<Floats, 2>;
  static constexpr std::size_t size = sizeof(std::uint16_t);

  [[gnu::always_inline]] static Values load_group(const std::byte* address) {
    return {{load_ordered(address), load_ordered(address + sizeof(Halves))}};
  }

  template <bool streaming>
  [[gnu::always_inline]] static void store_group(std::byte* address, const Values& values) {
    store<streaming>(address, float16_from_float(values.part[0]));
    store<streaming>(address + sizeof(Halves), float16_from_float(values.part[1]));
  }

  [[gnu::always_inline]] static Floats load_ordered(const std::byte* address) {
    return float_from_float16(load<Halves>(address));
  }
  [[gnu::always_inline]] static void store_ordered(std::byte* address, Floats values) {
    store<false>(address, float16_from_float(values));
  }
};
#else
using Float16 = Narrow<Float16Format>;
#endif

using BFloat16 = Narrow<BFloat16Format>;
using Float32 = Plain<float>;
using Float64 = Plain<double>;

}  // namespace
}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE

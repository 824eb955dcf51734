// The conversions of CUDA's half type that the kernels use.
#pragma once

#include <cuda_runtime.h>

struct __half {
  unsigned short bits;
};

inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline unsigned short __half_as_ushort(__half value) { return value.bits; }

inline float __half2float(__half value) {
  const unsigned sign = (value.bits & 0x8000U) << 16U;
  const unsigned exponent = (value.bits >> 10U) & 0x1fU;
  const unsigned mantissa = value.bits & 0x3ffU;
  if (exponent == 0x1fU) {
    return mantissa != 0 ? __uint_as_float(0x7fffffffU) : __uint_as_float(sign | 0x7f800000U);  // as the device's NaN
  }
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -24)
                              : std::ldexp(static_cast<float>(mantissa | 0x400U), static_cast<int>(exponent) - 25);
  return sign != 0 ? -magnitude : magnitude;
}

// To nearest, ties to even: the quotient by the last place's value is rounded as nearbyint does.
inline __half __float2half_rn(float value) {
  if (value != value) {
    return {0x7fff};
  }
  const auto sign = static_cast<unsigned short>(std::signbit(value) ? 0x8000U : 0U);
  const float magnitude = std::fabs(value);
  if (magnitude == 0) {
    return {sign};
  }
  if (magnitude >= 65520.0F) {
    return {static_cast<unsigned short>(sign | 0x7c00U)};
  }
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int place = std::max(exponent - 11, -24);
  const auto units = static_cast<unsigned>(std::nearbyint(std::ldexp(magnitude, -place)));
  // Subnormals have no hidden bit; a carry goes on into the exponent by itself.
  const unsigned bits = place == -24 ? units : (static_cast<unsigned>(place + 24) << 10U) + units;
  return {static_cast<unsigned short>(sign | bits)};
}

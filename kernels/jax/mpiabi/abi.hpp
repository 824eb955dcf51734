// The binary interface of MPItrampoline (MPIABI_*), as XLA uses it. Its handles and constants are words; this library
// chooses their meaning.
#pragma once

#include <cstddef>
#include <cstdint>

#define MPIABI_FUNCTION extern "C" __attribute__((visibility("default"))) int

namespace gradientflow::mpiabi {

using Word = std::intptr_t;

enum Code : int { success = 0, failed = 16, unsupported = 17 };

enum class Type : Word {
  byte = 1,
  int8,
  uint8,
  int16,
  uint16,
  int32,
  uint32,
  int64,
  uint64,
  float32,
  float64,
  complex64,
  complex128
};

enum class Op : Word { sum = 1, prod, min, max };

inline constexpr int undefined_color = -32766;
inline constexpr Word in_place = 1;

// Returns the count of a call. XLA passes a count of 2^31 or more cut to 32 bits.
[[nodiscard]] inline std::size_t count_of(int count) { return static_cast<std::uint32_t>(count); }

// Throws Error(type) for a type that XLA does not send.
[[nodiscard]] std::size_t size_of(Type type);

}  // namespace gradientflow::mpiabi

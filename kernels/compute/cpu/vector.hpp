// Vectors of one SIMD level, on the compilers' vector extensions.
//
// Every file that includes this file is compiled once per level, with different flags each time. So all its definitions
// are local to the translation unit, in an unnamed namespace inside the level's own. An inline function with external
// linkage would exist once in the program, perhaps with instructions that this processor lacks. For the same reason
// these files use nothing of the C++ library but types and memcpy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifndef GRADIENTFLOW_SIMD_NAMESPACE
#error "define GRADIENTFLOW_SIMD_NAMESPACE as baseline, avx2 or avx512 before the first include"
#endif

namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE {
namespace {

#if defined(__AVX512F__)
constexpr std::size_t vector_bytes = 64;
#elif defined(__AVX2__)
constexpr std::size_t vector_bytes = 32;
#else
constexpr std::size_t vector_bytes = 16;
#endif

// Non-temporal stores are fastest on whole lines, in order.
constexpr std::size_t cache_line = 64;

// A vector of Bytes bytes of T. (A struct, because GCC drops the attribute from an alias of a dependent type.)
template <class T, std::size_t Bytes>
struct VectorOf {
  using Type [[gnu::vector_size(Bytes)]] = T;
};

template <class T, std::size_t Bytes = vector_bytes>
using Vector = typename VectorOf<T, Bytes>::Type;

template <class V>
[[gnu::always_inline]] inline V load(const std::byte* address) {
  V vector;
  std::memcpy(&vector, address, sizeof(V));
  return vector;
}

// Stores a vector: if `streaming`, past the caches, at a multiple of the vector's size; otherwise by an ordinary store.
template <bool streaming, class V>
[[gnu::always_inline]] inline void store(std::byte* address, V vector) {
#if defined(__x86_64__)
  if constexpr (streaming && sizeof(V) == 8) {
    long long bits = 0;
    std::memcpy(&bits, &vector, sizeof(bits));
    _mm_stream_si64(reinterpret_cast<long long*>(address), bits);
    return;
  }
  if constexpr (streaming && sizeof(V) == 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(address), reinterpret_cast<__m128i>(vector));
    return;
  }
#if defined(__AVX2__)
  if constexpr (streaming && sizeof(V) == 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(address), reinterpret_cast<__m256i>(vector));
    return;
  }
#endif
#if defined(__AVX512F__)
  if constexpr (streaming && sizeof(V) == 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(address), reinterpret_cast<__m512i>(vector));
    return;
  }
#endif
#endif
  std::memcpy(address, &vector, sizeof(V));
}

// Returns the bytes from `address` to the next cache line boundary, at most `all`.
inline std::size_t bytes_to_line(const void* address, std::size_t all) {
  const std::size_t bytes = (cache_line - reinterpret_cast<std::uintptr_t>(address) % cache_line) % cache_line;
  return bytes < all ? bytes : all;
}

// Orders streaming stores before a flag, so that a thread that sees the flag also sees the data.
inline void streaming_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace
}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE

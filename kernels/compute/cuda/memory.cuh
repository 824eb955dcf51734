// Loads and stores of elements that lie side by side in global memory, each as one access.
//
// The accesses are written in PTX, because the compiler splits some of them if they are written in C++, and does not
// know that the pointers of a call list are to global memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gradientflow::compute::cuda {

template <class T, int n>
struct alignas(n * sizeof(T)) Pack {
  T element[n];
  __device__ T& operator[](int i) { return element[i]; }
  __device__ T operator[](int i) const { return element[i]; }
};

#ifdef __CUDACC__
template <int n, class T>
__device__ Pack<T, n> load(const T* address) {
  constexpr std::size_t bytes = sizeof(Pack<T, n>);
  static_assert(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16);
  const std::size_t global = __cvta_generic_to_global(address);
  std::uint32_t words[4];
  if constexpr (bytes == 1) {
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(words[0]) : "l"(global) : "memory");
  } else if constexpr (bytes == 2) {
    asm volatile("ld.global.u16 %0, [%1];" : "=r"(words[0]) : "l"(global) : "memory");
  } else if constexpr (bytes == 4) {
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(words[0]) : "l"(global) : "memory");
  } else if constexpr (bytes == 8) {
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "l"(global) : "memory");
  } else {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "l"(global)
                 : "memory");
  }
  Pack<T, n> pack;
  std::memcpy(&pack, words, bytes);
  return pack;
}

template <int n, class T>
__device__ void store(T* address, const Pack<T, n>& pack) {
  constexpr std::size_t bytes = sizeof(Pack<T, n>);
  static_assert(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16);
  const std::size_t global = __cvta_generic_to_global(address);
  std::uint32_t words[4] = {};
  std::memcpy(words, &pack, bytes);
  if constexpr (bytes == 1) {
    asm volatile("st.global.u8 [%0], %1;" : : "l"(global), "r"(words[0]) : "memory");
  } else if constexpr (bytes == 2) {
    asm volatile("st.global.u16 [%0], %1;" : : "l"(global), "r"(words[0]) : "memory");
  } else if constexpr (bytes == 4) {
    asm volatile("st.global.u32 [%0], %1;" : : "l"(global), "r"(words[0]) : "memory");
  } else if constexpr (bytes == 8) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" : : "l"(global), "r"(words[0]), "r"(words[1]) : "memory");
  } else {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(global), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  }
}
#else  // compiled as C++, for tests without a device
template <int n, class T>
Pack<T, n> load(const T* address) {
  Pack<T, n> pack;
  std::memcpy(&pack, __builtin_assume_aligned(address, sizeof pack), sizeof pack);
  return pack;
}

template <int n, class T>
void store(T* address, const Pack<T, n>& pack) {
  std::memcpy(__builtin_assume_aligned(address, sizeof pack), &pack, sizeof pack);
}
#endif

// Tells if packs can be loaded from this address, and after every n elements.
template <int n, class T>
__device__ bool is_aligned(const T* address) {
  return reinterpret_cast<std::uintptr_t>(address) % sizeof(Pack<T, n>) == 0;
}

}  // namespace gradientflow::compute::cuda

// Handles of MPI, pointers or ints, as numbers: in the 64 bits of a Request or an Arrival, and for mpi4py.
#pragma once

#include <cstdint>
#include <type_traits>

namespace gradientflow::transport {

template <class Handle>
[[nodiscard]] std::uint64_t to_bits(Handle handle) noexcept {
  if constexpr (std::is_pointer_v<Handle>) {
    return reinterpret_cast<std::uintptr_t>(handle);
  } else {
    return static_cast<std::uint32_t>(handle);
  }
}

template <class Handle>
[[nodiscard]] Handle from_bits(std::uint64_t bits) noexcept {
  if constexpr (std::is_pointer_v<Handle>) {
    return reinterpret_cast<Handle>(static_cast<std::uintptr_t>(bits));  // NOLINT(*-no-int-to-ptr): was a pointer
  } else {
    return static_cast<Handle>(static_cast<std::uint32_t>(bits));
  }
}

}  // namespace gradientflow::transport

// Lists of calls for kernels on a device, see compute/cuda/call_list.hpp: concatenated in host memory, and copied to
// the device with one copy.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "../../base/error.hpp"
#include "../../compute/cuda/call_list.hpp"
#include "mirrored_memory.hpp"

namespace gradientflow::engine {

class CallLists {
 public:
  // Returns the most bytes that `lists` lists need, of `calls` calls in all.
  template <class Call>
  [[nodiscard]] static std::size_t bytes_for(std::size_t calls, std::size_t lists) {
    return calls * (sizeof(Call) + sizeof(std::uint32_t)) + lists * (sizeof(std::uint32_t) + 2 * alignment);
  }

  CallLists() = default;
  explicit CallLists(std::size_t bytes) : memory_(bytes) {}  // on the current device

  [[nodiscard]] std::size_t bytes() const { return memory_.bytes(); }

  // Adds a list. Its calls must not run before send(). Throws Error(internal) if there is no room.
  template <class Call>
  [[nodiscard]] compute::cuda::CallList<Call> add(std::span<const Call> calls, DType dtype) {
    const auto first = compute::cuda::first_blocks(calls);
    const std::byte* const on_device = put(calls.data(), calls.size_bytes());
    const std::byte* const blocks = put(first.data(), first.size() * sizeof(std::uint32_t));
    return {reinterpret_cast<const Call*>(on_device), reinterpret_cast<const std::uint32_t*>(blocks), calls.size(),
            first.back(), dtype};
  }

  // Copies the lists added since the last send() to the device, in the stream.
  void send(compute::cuda::Stream stream) {
    memory_.upload(sent_, used_ - sent_, stream);
    sent_ = used_;
  }

  // Removes all lists. The calls that were sent must have run.
  void clear() { used_ = sent_ = 0; }

 private:
  static constexpr std::size_t alignment = 16;

  const std::byte* put(const void* data, std::size_t bytes) {
    const std::size_t begin = (used_ + alignment - 1) / alignment * alignment;
    if (begin + bytes > memory_.bytes()) {
      throw Error(ErrorKind::internal, "there is no room for another list of calls");
    }
    if (bytes > 0) {
      std::memcpy(memory_.on_host() + begin, data, bytes);
    }
    used_ = begin + bytes;
    return memory_.on_device() + begin;
  }

  MirroredMemory memory_;
  std::size_t used_ = 0;
  std::size_t sent_ = 0;
};

}  // namespace gradientflow::engine

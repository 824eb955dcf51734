// What the bindings of all pools share: indices of tensors, streams as numbers, and Python objects over a pool's memory
// and its extra numbers.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>

#include "../kernels/engine/memory/pool_memory.hpp"
#include "argument.hpp"

namespace gradientflow::bindings {

using Number = std::uintptr_t;
using TensorIndex = Argument<"index", "the number of a tensor", std::ptrdiff_t>;

// As in a list, negative indices count from the end. An index out of range stays out of range: the pool refuses it.
template <class Pool>
std::size_t tensor_at(Pool& pool, const TensorIndex& index) {
  const auto number = static_cast<std::ptrdiff_t>(pool.tensors() + (pool.extra().empty() ? 0 : 1));
  return static_cast<std::size_t>(index.value < 0 && index.value >= -number ? index.value + number : index.value);
}

// The stream with CUDA's own number, which frameworks give.
inline compute::cuda::Stream stream_of(Number number) {
  return reinterpret_cast<compute::cuda::Stream>(number);  // NOLINT(performance-no-int-to-ptr): that is what they give
}

// gradientflow._core.Segment or gradientflow._core.device.Segment.
inline pybind11::object segment_of(const engine::PoolMemory& memory) {
  return memory.device() ? pybind11::cast(memory.on_device()) : pybind11::cast(memory.on_host());
}

// The extra numbers that are averaged with the gradients: an array over the pool's own memory.
template <class Pool>
pybind11::array_t<double> extra_of(const pybind11::object& self) {
  auto& numbers = self.cast<Pool&>().extra();
  return pybind11::array_t<double>(static_cast<pybind11::ssize_t>(numbers.size()), numbers.data(), self);
}

}  // namespace gradientflow::bindings

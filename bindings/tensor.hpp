// A Python object seen as flat CPU memory, without a copy: NumPy arrays, anything with DLPack, anything with the buffer
// protocol.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>

#include "../kernels/base/dtype.hpp"

namespace gradientflow::bindings {

enum class Access { read, write };

// While it lives, so does the memory.
struct TensorView {
  std::byte* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::uint8;
  pybind11::object owner = pybind11::none();
};

// Throws Error(type) where the object, its dtype or its device is not supported, and Error(value) where it is not
// contiguous or, for Access::write, read-only. `name` is what the argument is called in messages.
TensorView view_tensor(pybind11::handle object, Access access, const char* name);

}  // namespace gradientflow::bindings

// Views of Python objects as flat memory, of the host or of a CUDA device, without a copy: NumPy arrays, and all
// objects with DLPack, with the CUDA array interface (version 2 or 3), or with the buffer protocol.
//
// Values on a device are ready in a stream: the framework's current one if it is known (PyTorch, and version 3 of the
// CUDA array interface, which CuPy and Numba have), otherwise the default stream, in which producers for DLPack make
// their values ready. In that last case the stream that will use the result is unknown, too, so the host waits until
// the device has finished the call.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "../kernels/base/dtype.hpp"
#include "../kernels/engine/calls/request.hpp"

namespace gradientflow::bindings {

enum class Access { read, write };

// View of a tensor; keeps the memory alive.
struct TensorView : engine::Array {
  [[nodiscard]] const engine::Array& array() const { return *this; }
  pybind11::object owner = pybind11::none();
  bool stream_is_known = true;
};

// Throws Error(type) if the object, its dtype or its device is not supported, and Error(value) if it is not contiguous
// or, for Access::write, is read-only. `name`: name of the argument in messages.
TensorView view_tensor(pybind11::handle object, Access access, const char* name);

// Returns a view of a PyTorch tensor in contiguous memory of the host, without gradient or negative bit; nothing for
// all other objects. For callers with a fallback: this function takes a tenth of the time of view_tensor().
std::optional<TensorView> view_if_simple(pybind11::handle object);

// Returns the shape of the view's owner.
std::vector<std::size_t> shape_of(const TensorView& view);

// Returns the stream in which a framework would use `object` on its device now; nothing if it is not known, or the
// object is not on a device.
std::optional<compute::cuda::Stream> current_stream(pybind11::handle object);

}  // namespace gradientflow::bindings

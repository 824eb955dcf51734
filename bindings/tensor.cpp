#include "tensor.hpp"

#include <pybind11/numpy.h>

#include <optional>
#include <string>
#include <string_view>

#include "../kernels/base/error.hpp"
#include "dlpack.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;

[[noreturn]] void refuse_type(const char* name, const std::string& why) {
  throw Error(ErrorKind::type, std::string(name) + " " + why);
}

[[noreturn]] void refuse_value(const char* name, const std::string& why) {
  throw Error(ErrorKind::value, std::string(name) + " " + why);
}

constexpr const char* not_contiguous = "is not contiguous in row-major order; make a contiguous copy first";
constexpr const char* read_only = "is read-only, and the result would be written to it";

bool is_contiguous(std::int32_t ndim, const std::int64_t* shape, const std::int64_t* strides) {
  std::int64_t expected = 1;
  for (std::int32_t i = ndim - 1; i >= 0; --i) {
    if (shape[i] == 0) {
      return true;
    }
    if (shape[i] != 1 && strides[i] != expected) {
      return false;
    }
    expected *= shape[i];
  }
  return true;
}

// kind and size of an element, as NumPy, DLPack and the buffer protocol all tell them
std::optional<DType> dtype_of(char kind, std::size_t bytes) {
  switch (kind) {
    case 'f':
      if (bytes == 2) return DType::float16;
      if (bytes == 4) return DType::float32;
      if (bytes == 8) return DType::float64;
      break;
    case 'i':
      if (bytes == 1) return DType::int8;
      if (bytes == 4) return DType::int32;
      if (bytes == 8) return DType::int64;
      break;
    case 'u':
      if (bytes == 1) return DType::uint8;
      break;
    case 'b':
      if (bytes == 1) return DType::boolean;
      break;
    case 'E':
      if (bytes == 2) return DType::bfloat16;
      break;
    default:
      break;
  }
  return std::nullopt;
}

[[noreturn]] void refuse_dtype(const char* name, const std::string& dtype) {
  refuse_type(name, "has dtype " + dtype +
                        ", which is not supported; supported are float16, bfloat16, float32, float64, int8, uint8, "
                        "int32, int64 and bool, in native byte order");
}

TensorView view_numpy(const py::array& array, Access access, const char* name) {
  const py::dtype dtype = array.dtype();
  char kind = dtype.kind();
  if (kind == 'V' || kind == 'E') {  // bfloat16 of ml_dtypes, which NumPy itself does not know
    kind = py::str(dtype.attr("name")).cast<std::string>() == "bfloat16" ? 'E' : 'V';
  }
  if (dtype.byteorder() == '>') {
    kind = '>';
  }
  const std::optional<DType> known = dtype_of(kind, static_cast<std::size_t>(dtype.itemsize()));
  if (!known) {
    refuse_dtype(name, py::str(dtype).cast<std::string>());
  }
  TensorView view;
  view.dtype = *known;
  if ((array.flags() & py::array::c_style) == 0) {
    refuse_value(name, not_contiguous);
  }
  if (access == Access::write && !array.writeable()) {
    refuse_value(name, read_only);
  }
  view.data = static_cast<std::byte*>(const_cast<void*>(array.data()));  // NOLINT(*-const-cast): checked above
  view.count = static_cast<std::size_t>(array.size());
  view.owner = array;
  return view;
}

TensorView view_dlpack(const dlpack::Tensor& tensor, py::object capsule, const char* name) {
  if (tensor.device.type != dlpack::cpu && tensor.device.type != dlpack::cuda_host) {
    refuse_type(name, "is not in CPU memory (DLPack device type " + std::to_string(tensor.device.type) +
                          "); this version serves CPU memory only");
  }
  constexpr std::string_view kinds = "iufVE?b";  // by type code
  const std::size_t code = tensor.dtype.code;
  const char kind = tensor.dtype.lanes == 1 && code < kinds.size() ? kinds[code] : 'V';
  const std::optional<DType> known = dtype_of(kind, tensor.dtype.bits / 8U);
  if (!known) {
    refuse_dtype(name,
                 "with DLPack code " + std::to_string(code) + " and " + std::to_string(tensor.dtype.bits) + " bits");
  }
  TensorView view;
  view.dtype = *known;
  if (tensor.strides != nullptr && !is_contiguous(tensor.ndim, tensor.shape, tensor.strides)) {
    refuse_value(name, not_contiguous);
  }
  view.count = 1;
  for (std::int32_t i = 0; i < tensor.ndim; ++i) {
    view.count *= static_cast<std::size_t>(tensor.shape[i]);
  }
  view.data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  view.owner = std::move(capsule);
  return view;
}

py::object export_dlpack(py::handle object) {
  const py::object method = object.attr("__dlpack__");
  try {
    return method(py::arg("max_version") = py::make_tuple(1, 0));  // says whether the memory is read-only
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) {
      throw;
    }
    return method();  // a producer from before version 1
  }
}

// The capsule stays ours: its own destructor calls the deleter once the view is gone.
TensorView view_dlpack(py::handle object, Access access, const char* name) {
  py::object capsule;
  try {
    capsule = export_dlpack(object);
  } catch (py::error_already_set& error) {
    refuse_type(name, std::string("cannot be shared through DLPack: ") + py::str(error.value()).cast<std::string>());
  }
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
    const auto* const managed =
        static_cast<dlpack::ManagedTensorVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (access == Access::write && (managed->flags & dlpack::flag_read_only) != 0) {
      refuse_value(name, read_only);
    }
    return view_dlpack(managed->tensor, std::move(capsule), name);
  }
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor") != 0) {
    const auto* const managed = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
    return view_dlpack(managed->tensor, std::move(capsule), name);
  }
  refuse_type(name, "gave something else than a DLPack capsule");
}

TensorView view_buffer(py::handle object, Access access, const char* name) {
  // NumPy reads every format of the buffer protocol, without a copy.
  const py::array array = py::module_::import("numpy").attr("asarray")(py::memoryview(object.cast<py::buffer>()));
  return view_numpy(array, access, name);
}

}  // namespace

TensorView view_tensor(py::handle object, Access access, const char* name) {
  if (py::isinstance<py::array>(object)) {
    return view_numpy(py::reinterpret_borrow<py::array>(object), access, name);
  }
  if (py::hasattr(object, "__dlpack__")) {
    return view_dlpack(object, access, name);
  }
  if (PyObject_CheckBuffer(object.ptr()) != 0) {
    return view_buffer(object, access, name);
  }
  refuse_type(name, "is a " + py::str(py::type::of(object).attr("__name__")).cast<std::string>() +
                        "; what is needed is a NumPy array, or an object with DLPack or the buffer protocol");
}

}  // namespace gradientflow::bindings

#include "tensor.hpp"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../kernels/base/error.hpp"
#include "../kernels/compute/cuda/runtime.hpp"
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

// Returns the dtype for the kind and size of an element, which NumPy, DLPack and the buffer protocol all give.
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

constexpr std::uintptr_t default_stream = 1;  // number of the default stream in both protocols, and in CUDA

compute::cuda::Stream stream_from(std::uintptr_t number) {
  return reinterpret_cast<compute::cuda::Stream>(number);  // NOLINT(performance-no-int-to-ptr): frameworks give numbers
}

// Returns true for PyTorch's tensors and their subclasses.
bool is_of_torch(py::handle object) {
  const auto types = py::reinterpret_borrow<py::tuple>(Py_TYPE(object.ptr())->tp_mro);
  return std::any_of(types.begin(), types.end(), [](py::handle type) {
    const py::object module = py::getattr(type, "__module__", py::str(""));
    const auto name = py::isinstance<py::str>(module) ? module.cast<std::string>() : std::string();
    return name == "torch" || name.starts_with("torch.");
  });
}

TensorView view_dlpack(const dlpack::Tensor& tensor, py::object capsule, const char* name) {
  const std::int32_t device = tensor.device.type;
  const bool on_device = device == dlpack::cuda || device == dlpack::cuda_managed;
  if (!on_device && device != dlpack::cpu && device != dlpack::cuda_host) {
    refuse_type(name, "is neither in memory of the host nor on a CUDA device (DLPack device type " +
                          std::to_string(device) + ")");
  }
  constexpr std::string_view kinds = "iufVE?b";  // kinds by type code
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
  if (tensor.data == nullptr && view.count > 0) {  // PyTorch's zero tensors, or its tracers' tensors
    refuse_value(name, "has no memory; make a copy of its values first");
  }
  view.data = tensor.data == nullptr ? nullptr : static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  view.owner = std::move(capsule);
  if (on_device) {
    view.placement = collective::Placement{tensor.device.id, stream_from(default_stream)};
    view.stream_is_known = false;
  }
  return view;
}

// Passes `stream` only if it is given: PyTorch's host tensors refuse a stream, and PyTorch's default stream is
// suitable.
py::object export_dlpack(py::handle object, std::optional<std::int64_t> stream) {
  const py::object method = object.attr("__dlpack__");
  py::dict arguments;
  if (stream) {
    arguments["stream"] = *stream;
  }
  try {
    py::dict versioned = arguments.attr("copy")();
    versioned["max_version"] = py::make_tuple(1, 0);  // tells whether the memory is read-only
    return method(**versioned);
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) {
      throw;
    }
    return method(**arguments);  // a producer from before version 1
  }
}

bool is_on_device(py::handle object) {
  if (!py::hasattr(object, "__dlpack_device__")) {
    return false;
  }
  const py::object device = object.attr("__dlpack_device__")();
  const int kind = device[py::int_(0)].cast<int>();
  return kind == dlpack::cuda || kind == dlpack::cuda_managed;
}

// Exports a CUDA tensor by PyTorch's function, as the tensor's method serves the current device only.
py::object export_of_torch(py::handle tensor, const char* name) {
  if (tensor.attr("is_neg")().cast<bool>()) {
    refuse_value(name, "is a negated view of other values; give tensor.resolve_neg()");
  }
  if (tensor.attr("requires_grad").cast<bool>()) {
    return export_dlpack(tensor, std::nullopt);  // raises the error
  }
  const py::object device = tensor.attr("device");
  if (device.attr("type").cast<std::string>() != "cuda") {
    return export_dlpack(tensor, std::nullopt);
  }
  return py::module_::import("torch.utils.dlpack").attr("to_dlpack")(tensor);
}

// Exports a tensor of PyTorch in memory of the host through DLPack's exchange in C, in a tenth of the time; returns
// nothing if the methods have to serve. The exchange knows neither gradients nor the negative bit. A subclass that
// inherits it may have its values elsewhere.
py::object export_in_c(py::handle object) {
  static PyObject* const attribute = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
  static PyObject* const requires_grad = PyUnicode_InternFromString("requires_grad");
  static PyObject* const is_cpu = PyUnicode_InternFromString("is_cpu");
  static PyObject* const layout = PyUnicode_InternFromString("layout");
  static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
  constexpr const char* exchange = "dlpack_exchange_api";
  constexpr const char* exported = "dltensor_versioned";
  PyObject* const of_type = Py_TYPE(object.ptr())->tp_dict;
  PyObject* const found = of_type == nullptr ? nullptr : PyDict_GetItemWithError(of_type, attribute);
  if (found == nullptr || PyCapsule_IsValid(found, exchange) == 0) {
    return {};
  }
  static PyObject* const strided = py::object(py::module_::import("torch").attr("strided")).release().ptr();
  const auto* const api = static_cast<dlpack::ExchangeApi*>(PyCapsule_GetPointer(found, exchange));
  const auto is = [&](PyObject* name, PyObject* wanted) {
    return py::reinterpret_steal<py::object>(PyObject_GetAttr(object.ptr(), name)).ptr() == wanted;
  };
  const auto is_negated = [&] {
    return py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(object.ptr(), is_neg)).ptr() != Py_False;
  };
  dlpack::ManagedTensorVersioned* managed = nullptr;
  if (api->major != 1 || !is(is_cpu, Py_True) || !is(layout, strided) || !is(requires_grad, Py_False) || is_negated() ||
      api->export_tensor(object.ptr(), &managed) != 0) {
    PyErr_Clear();  // the methods raise it again, with their own message
    return {};
  }
  const auto release = [](PyObject* capsule) {
    auto* const held = static_cast<dlpack::ManagedTensorVersioned*>(PyCapsule_GetPointer(capsule, exported));
    held->deleter(held);
  };
  auto capsule = py::reinterpret_steal<py::object>(PyCapsule_New(managed, exported, release));
  return managed->tensor.device.type == dlpack::cpu ? capsule : py::object();
}

// Keeps the capsule alive: the capsule's destructor calls the deleter once the view is gone.
TensorView view_exported(py::object capsule, Access access, const char* name) {
  TensorView view;
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
    const auto* const managed =
        static_cast<dlpack::ManagedTensorVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (access == Access::write && (managed->flags & dlpack::flag_read_only) != 0) {
      refuse_value(name, read_only);
    }
    view = view_dlpack(managed->tensor, std::move(capsule), name);
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor") != 0) {
    const auto* const managed = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
    view = view_dlpack(managed->tensor, std::move(capsule), name);
  } else {
    refuse_type(name, "gave something else than a DLPack capsule");
  }
  return view;
}

TensorView view_dlpack(py::handle object, Access access, const char* name) {
  constexpr std::int64_t do_not_wait = -1;
  py::object capsule = export_in_c(object);
  const bool of_torch = !capsule && is_of_torch(object);
  std::optional<compute::cuda::Stream> stream;
  try {
    if (of_torch) {
      capsule = export_of_torch(object, name);
    } else if (!capsule && is_on_device(object)) {
      stream = current_stream(object);
      capsule = export_dlpack(object, stream ? do_not_wait : static_cast<std::int64_t>(default_stream));
    } else if (!capsule) {
      capsule = export_dlpack(object, std::nullopt);
    }
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) {
      throw;
    }
    refuse_type(name, std::string("cannot be shared through DLPack: ") + py::str(error.value()).cast<std::string>());
  }
  TensorView view = view_exported(std::move(capsule), access, name);
  if (view.placement) {
    stream = of_torch ? current_stream(object) : stream;
    if (stream) {
      view.placement->stream = *stream;
      view.stream_is_known = true;
    }
  }
  return view;
}

// Returns the stream of version 3 of the CUDA array interface; nothing if the entry is None (no work is under way) or
// missing (the stream is not known).
std::optional<compute::cuda::Stream> stream_of_interface(const py::dict& interface) {
  if (!interface.contains("stream") || py::object(interface["stream"]).is_none()) {
    return std::nullopt;
  }
  return stream_from(interface["stream"].cast<std::uintptr_t>());
}

bool is_contiguous(const py::dict& interface, const std::vector<std::int64_t>& shape, std::int64_t bytes) {
  if (!interface.contains("strides") || py::object(interface["strides"]).is_none()) {
    return true;
  }
  auto strides = interface["strides"].cast<std::vector<std::int64_t>>();
  for (std::int64_t& stride : strides) {
    if (bytes == 0 || stride % bytes != 0) {
      return false;
    }
    stride /= bytes;
  }
  return strides.size() == shape.size() &&
         is_contiguous(static_cast<std::int32_t>(shape.size()), shape.data(), strides.data());
}

TensorView view_cuda_array(py::handle object, Access access, const char* name) {
  const py::dict interface = object.attr("__cuda_array_interface__");
  const auto type = interface["typestr"].cast<std::string>();
  const std::int64_t bytes = type.size() > 2 ? std::stol(type.substr(2)) : 0;
  const std::optional<DType> known =
      type.starts_with('>') ? std::nullopt : dtype_of(type.at(1), static_cast<std::size_t>(bytes));
  if (!known) {
    refuse_dtype(name, type);
  }
  if (interface.contains("mask") && !py::object(interface["mask"]).is_none()) {
    refuse_type(name, "has a mask");
  }
  const auto [address, is_read_only] = interface["data"].cast<std::pair<std::uintptr_t, bool>>();
  if (access == Access::write && is_read_only) {
    refuse_value(name, read_only);
  }
  const auto shape = interface["shape"].cast<std::vector<std::int64_t>>();
  if (!is_contiguous(interface, shape, bytes)) {
    refuse_value(name, not_contiguous);
  }
  TensorView view;
  view.dtype = *known;
  view.count = 1;
  for (const std::int64_t size : shape) {
    view.count *= static_cast<std::size_t>(size);
  }
  view.data = reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr): frameworks give numbers
  const std::optional<compute::cuda::Stream> stream = stream_of_interface(interface);
  const int device =
      view.count == 0 ? compute::cuda::runtime().device() : compute::cuda::runtime().facts(view.data).device;
  view.placement = collective::Placement{device, stream.value_or(stream_from(default_stream))};
  view.stream_is_known = stream.has_value();
  view.owner = py::reinterpret_borrow<py::object>(object);
  return view;
}

TensorView view_buffer(py::handle object, Access access, const char* name) {
  // NumPy reads every format of the buffer protocol, without a copy.
  const py::array array = py::module_::import("numpy").attr("asarray")(py::memoryview(object.cast<py::buffer>()));
  return view_numpy(array, access, name);
}

TensorView view_any(py::handle object, Access access, const char* name) {
  if (py::isinstance<py::array>(object)) {
    return view_numpy(py::reinterpret_borrow<py::array>(object), access, name);
  }
  if (py::hasattr(object, "__dlpack__")) {
    return view_dlpack(object, access, name);
  }
  if (py::hasattr(object, "__cuda_array_interface__")) {
    return view_cuda_array(object, access, name);
  }
  if (PyObject_CheckBuffer(object.ptr()) != 0) {
    return view_buffer(object, access, name);
  }
  refuse_type(name,
              "is a " + py::str(py::type::of(object).attr("__name__")).cast<std::string>() +
                  "; what is needed is a NumPy array, or an object with DLPack, the CUDA array interface or the buffer "
                  "protocol");
}

}  // namespace

// Returns a view of a tensor; an error of the object's own protocols becomes an Error(type) of the argument.
TensorView view_tensor(py::handle object, Access access, const char* name) {
  try {
    return view_any(object, access, name);
  } catch (const Error&) {
    throw;
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) {
      throw;
    }
    refuse_type(name, "cannot be read: " + py::str(error.value()).cast<std::string>());
  } catch (const std::exception& error) {
    refuse_type(name, std::string("cannot be read: ") + error.what());
  }
}

std::optional<TensorView> view_if_simple(py::handle object) {
  py::object capsule = export_in_c(object);
  if (!capsule) {
    return std::nullopt;
  }
  try {
    return view_exported(std::move(capsule), Access::write, "the tensor");
  } catch (const Error&) {  // unsupported dtype, or gaps
    return std::nullopt;
  }
}

std::vector<std::size_t> shape_of(const TensorView& view) {
  if (py::isinstance<py::array>(view.owner)) {
    const auto array = py::reinterpret_borrow<py::array>(view.owner);
    return {array.shape(), array.shape() + array.ndim()};
  }
  const dlpack::Tensor* tensor = nullptr;
  if (PyCapsule_IsValid(view.owner.ptr(), "dltensor_versioned") != 0) {
    tensor = &static_cast<dlpack::ManagedTensorVersioned*>(PyCapsule_GetPointer(view.owner.ptr(), "dltensor_versioned"))
                  ->tensor;
  } else if (PyCapsule_IsValid(view.owner.ptr(), "dltensor") != 0) {
    tensor = &static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(view.owner.ptr(), "dltensor"))->tensor;
  } else {
    return py::object(view.owner.attr("__cuda_array_interface__")["shape"]).cast<std::vector<std::size_t>>();
  }
  return {tensor->shape, tensor->shape + tensor->ndim};
}

std::optional<compute::cuda::Stream> current_stream(py::handle object) {
  if (is_of_torch(object)) {
    const py::object device = object.attr("device");
    if (device.attr("type").cast<std::string>() != "cuda") {
      return std::nullopt;
    }
    const py::object stream = py::module_::import("torch").attr("cuda").attr("current_stream")(device);
    return stream_from(stream.attr("cuda_stream").cast<std::uintptr_t>());
  }
  if (py::hasattr(object, "__gradientflow_stream__")) {
    return stream_from(object.attr("__gradientflow_stream__").cast<std::uintptr_t>());
  }
  if (py::hasattr(object, "__cuda_array_interface__")) {
    return stream_of_interface(object.attr("__cuda_array_interface__"));
  }
  return std::nullopt;
}

}  // namespace gradientflow::bindings

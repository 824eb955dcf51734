// gradientflow._core.device: memory of CUDA devices for the package's own arrays.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../kernels/collective/on_device/device_segment.hpp"
#include "../kernels/compute/cuda/owned.hpp"
#include "../kernels/compute/cuda/runtime.hpp"
#include "bindings.hpp"
#include "dlpack.hpp"
#include "gil.hpp"
#include "tensor.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;
namespace cuda = compute::cuda;
using collective::DeviceSegment;

void* pointer(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): an address from Python
}

// Allocates zero-filled memory that no other rank maps.
std::shared_ptr<cuda::DeviceMemory> allocate(int device, std::size_t bytes) {
  if (device < 0 || device >= cuda::device_count()) {
    static_cast<void>(cuda::runtime());  // throws if there are no devices at all
    throw Error(ErrorKind::value, "there is no CUDA device " + std::to_string(device) + ", there are " +
                                      std::to_string(cuda::device_count()));
  }
  const cuda::UseDevice use(device);
  auto memory = std::make_shared<cuda::DeviceMemory>(bytes);
  cuda::runtime().clear(memory->data(), bytes, nullptr);
  cuda::runtime().synchronize(nullptr);
  return memory;
}

void check_host(const py::buffer_info& host, std::size_t bytes) {
  if (static_cast<std::size_t>(host.size * host.itemsize) != bytes) {
    throw Error(ErrorKind::value, "there are " + std::to_string(bytes) + " bytes on the device, and " +
                                      std::to_string(host.size * host.itemsize) + " on the host");
  }
}

// Copies to the host. Waits for the work in the stream, and for the copy.
void read(int device, std::uintptr_t address, const py::buffer& host, std::size_t bytes, std::uintptr_t stream) {
  const py::buffer_info info = host.request(true);
  check_host(info, bytes);
  const WithoutGil release;
  const cuda::UseDevice use(device);
  cuda::runtime().copy(info.ptr, pointer(address), bytes, pointer(stream));
  cuda::runtime().synchronize(pointer(stream));
}

void write(int device, std::uintptr_t address, const py::buffer& host, std::size_t bytes, std::uintptr_t stream) {
  const py::buffer_info info = host.request();
  check_host(info, bytes);
  const WithoutGil release;
  const cuda::UseDevice use(device);
  cuda::runtime().copy(pointer(address), info.ptr, bytes, pointer(stream));
  cuda::runtime().synchronize(pointer(stream));
}

// Copies in the stream. Waits only if memory of the host is not pinned.
void copy(int device, std::uintptr_t destination, std::uintptr_t source, std::size_t bytes, std::uintptr_t stream) {
  const cuda::UseDevice use(device);
  cuda::runtime().copy(pointer(destination), pointer(source), bytes, pointer(stream));
}

void synchronize(int device, std::uintptr_t stream) {
  const cuda::UseDevice use(device);
  cuda::runtime().synchronize(pointer(stream));
}

// Makes later work of `later` run after the work now in `earlier`.
void order(int device, std::uintptr_t earlier, std::uintptr_t later) {
  const cuda::UseDevice use(device);
  const cuda::OwnedEvent event;
  cuda::runtime().record(event.get(), pointer(earlier));
  cuda::runtime().wait(pointer(later), event.get());
}

// Point in a CopyStream; once it has happened, all earlier copies are done.
class Mark {
 public:
  Mark(int device, cuda::OwnedEvent event) : device_(device), event_(std::move(event)) {}

  [[nodiscard]] bool happened() const {
    const cuda::UseDevice use(device_);
    return cuda::runtime().happened(event_.get());
  }
  void wait() const { cuda::runtime().synchronize_event(event_.get()); }

 private:
  int device_;
  cuda::OwnedEvent event_;
};

// Stream for copies between a device and memory of the host, while the device computes.
class CopyStream {
 public:
  explicit CopyStream(int device)
      : device_(device), stream_([device] {
          const cuda::UseDevice use(device);
          return std::make_unique<cuda::OwnedStream>();
        }()) {}
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;
  ~CopyStream() {
    try {
      wait();
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): a device that has failed copies nothing more
    }
  }

  // Makes later copies run after the work now in `stream`.
  void follow(std::uintptr_t stream) const { order(device_, stream, own()); }
  // Makes later work of `stream` run after the copies until now.
  void hold(std::uintptr_t stream) const { order(device_, own(), stream); }

  void copy(std::uintptr_t destination, std::uintptr_t source, std::size_t bytes) const {
    if (bytes > 0) {
      bindings::copy(device_, destination, source, bytes, own());
    }
  }

  [[nodiscard]] std::unique_ptr<Mark> mark() const {
    const cuda::UseDevice use(device_);
    cuda::OwnedEvent event;
    cuda::runtime().record(event.get(), stream_->get());
    return std::make_unique<Mark>(device_, std::move(event));
  }

  void wait() const { cuda::runtime().synchronize(stream_->get()); }

  [[nodiscard]] std::uintptr_t own() const { return reinterpret_cast<std::uintptr_t>(stream_->get()); }

 private:
  int device_;
  std::unique_ptr<cuda::OwnedStream> stream_;
};

// Returns nullptr if the system refuses to pin this memory: copies are then slower, but correct.
std::optional<std::unique_ptr<cuda::Pinned>> pin(std::uintptr_t address, std::size_t bytes) {
  try {
    return bytes > 0 ? std::optional(std::make_unique<cuda::Pinned>(pointer(address), bytes)) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Returns (address, dtype) of an array on a device.
std::pair<std::uintptr_t, std::string> place_of(const py::object& array) {
  const TensorView view = view_tensor(array, Access::write, "the array");
  if (!view.placement) {
    throw Error(ErrorKind::type, "the array is in memory of the host, and not on a device");
  }
  return {reinterpret_cast<std::uintptr_t>(view.data), std::string(name_of(view.dtype))};
}

// DLPack tensor, with the owner of its memory.
struct Exported {
  dlpack::ManagedTensor managed{};
  std::vector<std::int64_t> shape;
  py::object owner;
};

dlpack::DataType dlpack_type(DType dtype) {
  const auto bits = static_cast<std::uint8_t>(8 * size_of(dtype));
  switch (dtype) {
    case DType::float16:
    case DType::float32:
    case DType::float64:
      return {dlpack::code_float, bits, 1};
    case DType::bfloat16:
      return {dlpack::code_bfloat, bits, 1};
    case DType::int8:
    case DType::int32:
    case DType::int64:
      return {dlpack::code_int, bits, 1};
    case DType::uint8:
      return {dlpack::code_uint, bits, 1};
    case DType::boolean:
      return {dlpack::code_bool, bits, 1};
  }
  throw Error(ErrorKind::internal, "unknown dtype");
}

// Frees an exported tensor. Called by the tensor's consumer, perhaps without the GIL; or by the capsule, if there was
// no consumer.
void release(dlpack::ManagedTensor* managed) {
  const py::gil_scoped_acquire gil;
  delete static_cast<Exported*>(managed->context);  // NOLINT(*-owning-memory): that is how DLPack gives it back
}

py::capsule to_dlpack(py::object owner, std::uintptr_t address, std::vector<std::int64_t> shape,
                      const std::string& dtype, int device) {
  auto exported = std::make_unique<Exported>();
  exported->shape = std::move(shape);
  exported->owner = std::move(owner);
  exported->managed.tensor = {.data = pointer(address),
                              .device = {dlpack::cuda, device},
                              .ndim = static_cast<std::int32_t>(exported->shape.size()),
                              .dtype = dlpack_type(dtype_from_name(dtype)),
                              .shape = exported->shape.data(),
                              .strides = nullptr,
                              .byte_offset = 0};
  exported->managed.context = exported.get();
  exported->managed.deleter = &release;
  PyObject* const capsule = PyCapsule_New(&exported->managed, "dltensor", [](PyObject* self) {
    if (PyCapsule_IsValid(self, "dltensor") != 0) {  // otherwise a consumer took and renamed it
      release(static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(self, "dltensor")));
    }
  });
  if (capsule == nullptr) {
    throw py::error_already_set();
  }
  static_cast<void>(exported.release());
  return py::reinterpret_steal<py::capsule>(capsule);
}

}  // namespace

void bind_device(py::module_& module) {
  py::module_ submodule = module.def_submodule("device", "Memory of CUDA devices.");
  py::class_<cuda::DeviceMemory, std::shared_ptr<cuda::DeviceMemory>>(submodule, "Memory")
      .def_property_readonly(
          "address", [](const cuda::DeviceMemory& memory) { return reinterpret_cast<std::uintptr_t>(memory.data()); });
  py::class_<DeviceSegment, std::shared_ptr<DeviceSegment>>(submodule, "Segment")
      .def_property_readonly(
          "address", [](const DeviceSegment& segment) { return reinterpret_cast<std::uintptr_t>(segment.mine()); });
  submodule.def("built", &cuda::is_built, "Whether the library was built with CUDA.");
  submodule.def("unavailable_reason", &cuda::unavailable_reason, "Why no device can be used; empty where one can.");
  submodule.def("count", &cuda::device_count, "Number of devices; 0 without a driver.");
  submodule.def("name", [](int device) { return cuda::runtime().name(device); }, py::arg("device"));
  submodule.def("allocate", &allocate, py::arg("device"), py::arg("bytes"), py::call_guard<WithoutGil>());
  submodule.def("read", &read, py::arg("device"), py::arg("address"), py::arg("host"), py::arg("bytes"),
                py::arg("stream"));
  submodule.def("write", &write, py::arg("device"), py::arg("address"), py::arg("host"), py::arg("bytes"),
                py::arg("stream"));
  submodule.def("copy", &copy, py::arg("device"), py::arg("destination"), py::arg("source"), py::arg("bytes"),
                py::arg("stream"), py::call_guard<WithoutGil>(),
                "Put a copy into a stream: between host and device in either direction, or on the device.");
  submodule.def("synchronize", &synchronize, py::arg("device"), py::arg("stream"), py::call_guard<WithoutGil>(),
                "Wait for all that was put into a stream.");
  submodule.def("order", &order, py::arg("device"), py::arg("earlier"), py::arg("later"));
  submodule.def(
      "of", [](std::uintptr_t address) { return cuda::runtime().facts(pointer(address)).device; }, py::arg("address"),
      "The device that has this memory.");
  submodule.def(
      "use", [](int device) { cuda::runtime().use(device); }, py::arg("device"),
      "Make a device the calling thread's current one.");
  submodule.def("current", [] { return cuda::runtime().device(); }, "The calling thread's device.");
  submodule.def("place_of", &place_of, py::arg("array"), "Address and dtype of an array on a device.");
  submodule.def(
      "clear",
      [](int device, std::uintptr_t address, std::size_t bytes, std::uintptr_t stream) {
        const cuda::UseDevice use(device);
        cuda::runtime().clear(pointer(address), bytes, pointer(stream));
      },
      py::arg("device"), py::arg("address"), py::arg("bytes"), py::arg("stream"));
  const py::class_<cuda::Pinned> pinned(submodule, "Pinned");
  submodule.def("pin", &pin, py::arg("address"), py::arg("bytes"),
                "Pin memory of the host for as long as what is returned lives; None where that cannot be.");
  py::class_<Mark>(submodule, "Mark")
      .def_property_readonly("happened", &Mark::happened)
      .def("wait", &Mark::wait, py::call_guard<WithoutGil>());
  py::class_<CopyStream>(submodule, "CopyStream")
      .def(py::init<int>(), py::arg("device"))
      .def_property_readonly("address", &CopyStream::own)
      .def("follow", &CopyStream::follow, py::arg("stream"))
      .def("hold", &CopyStream::hold, py::arg("stream"))
      .def("copy", &CopyStream::copy, py::arg("destination"), py::arg("source"), py::arg("bytes"),
           py::call_guard<WithoutGil>())
      .def("mark", &CopyStream::mark)
      .def("wait", &CopyStream::wait, py::call_guard<WithoutGil>());
  submodule.def("to_dlpack", &to_dlpack, py::arg("owner"), py::arg("address"), py::arg("shape"), py::arg("dtype"),
                py::arg("device"));
}

}  // namespace gradientflow::bindings

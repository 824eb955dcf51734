// gradientflow._core.device: memory of CUDA devices for arrays of the package's own.
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

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;
namespace cuda = compute::cuda;
using collective::DeviceSegment;

void* pointer(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): that is what the caller has
}

// Memory that no other rank maps, zero-filled.
std::shared_ptr<cuda::DeviceMemory> allocate(int device, std::size_t bytes) {
  if (device < 0 || device >= cuda::device_count()) {
    static_cast<void>(cuda::runtime());  // throws where there are no devices at all
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

// Waits for what is in the stream, and for the copy.
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

// What is put into `later` from now on sees what is in `earlier` now.
void order(int device, std::uintptr_t earlier, std::uintptr_t later) {
  const cuda::UseDevice use(device);
  const cuda::OwnedEvent event;
  cuda::runtime().record(event.get(), pointer(earlier));
  cuda::runtime().wait(pointer(later), event.get());
}

// A DLPack tensor, and what keeps its memory.
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

// Called by whoever took the tensor, perhaps without the GIL; or by the capsule, where nobody did.
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
    if (PyCapsule_IsValid(self, "dltensor") != 0) {  // else it was taken, and renamed
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
  submodule.def("trouble", &cuda::runtime_trouble, "Why no device can be used; empty where one can.");
  submodule.def("count", &cuda::device_count, "How many devices there are; 0 without a driver.");
  submodule.def("name", [](int device) { return cuda::runtime().name(device); }, py::arg("device"));
  submodule.def("allocate", &allocate, py::arg("device"), py::arg("bytes"), py::call_guard<WithoutGil>());
  submodule.def("read", &read, py::arg("device"), py::arg("address"), py::arg("host"), py::arg("bytes"),
                py::arg("stream"));
  submodule.def("write", &write, py::arg("device"), py::arg("address"), py::arg("host"), py::arg("bytes"),
                py::arg("stream"));
  submodule.def("order", &order, py::arg("device"), py::arg("earlier"), py::arg("later"));
  submodule.def(
      "of", [](std::uintptr_t address) { return cuda::runtime().facts(pointer(address)).device; }, py::arg("address"),
      "The device that has this memory.");
  submodule.def("current", [] { return cuda::runtime().device(); }, "The calling thread's device.");
  submodule.def("to_dlpack", &to_dlpack, py::arg("owner"), py::arg("address"), py::arg("shape"), py::arg("dtype"),
                py::arg("device"));
}

}  // namespace gradientflow::bindings

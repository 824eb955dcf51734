// gradientflow._core.cuda: whether there are CUDA kernels and devices, and the kernels on raw addresses of the device,
// for the tests and the benchmark of the kernels. Each call waits for its result.
#include <pybind11/pybind11.h>

#include "bindings.hpp"

#ifdef GRADIENTFLOW_HAS_CUDA
#include <pybind11/stl.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "../kernels/base/dtype.hpp"
#include "../kernels/base/error.hpp"
#include "../kernels/compute/cuda/chunks.hpp"
#include "../kernels/compute/cuda/device.hpp"
#include "../kernels/compute/cuda/kernels.hpp"
#include "../kernels/compute/cuda/optimizer_steps.hpp"
#endif

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;

#ifdef GRADIENTFLOW_HAS_CUDA
namespace cuda = compute::cuda;
using Address = std::uintptr_t;
using cuda::DeviceMemory;

void* pointer(Address address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): that is what the caller has
}
float* floats(Address address) { return static_cast<float*>(pointer(address)); }

// A copy on the device.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : memory_(values.size() * sizeof(T)) {
    cuda::copy(memory_.data(), values.data(), memory_.bytes(), nullptr);
    cuda::synchronize(nullptr);
  }
  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  [[nodiscard]] std::vector<T> read() const {
    std::vector<T> values(memory_.bytes() / sizeof(T));
    cuda::copy(values.data(), memory_.data(), memory_.bytes(), nullptr);
    cuda::synchronize(nullptr);
    return values;
  }

 private:
  DeviceMemory memory_;
};

// A list of calls on the device, without the first `skipped` ones.
template <class Call>
class Uploaded {
 public:
  Uploaded(const std::vector<Call>& calls, const std::string& dtype, std::size_t skipped)
      : Uploaded(calls, cuda::first_blocks(std::span<const Call>(calls)), dtype_from_name(dtype), skipped) {}
  [[nodiscard]] const cuda::CallList<Call>& list() const { return list_; }

 private:
  Uploaded(const std::vector<Call>& calls, const std::vector<std::uint32_t>& first_block, DType dtype,
           std::size_t skipped)
      : calls_(calls),
        first_block_(first_block),
        list_{.calls = calls_.data() + skipped,
              .first_block = first_block_.data() + skipped,
              .number = calls.size() - skipped,
              .blocks = first_block.back() - first_block.at(skipped),
              .dtype = dtype} {}

  OnDevice<Call> calls_;
  OnDevice<std::uint32_t> first_block_;
  cuda::CallList<Call> list_;
};

// Runs a kernel that gives a number for each call.
template <class Call>
std::vector<double> run(void (*kernel)(const cuda::CallList<Call>&, double*, void*, cuda::Stream),
                        const std::vector<Call>& calls, const std::string& dtype, std::size_t skipped) {
  const Uploaded<Call> uploaded(calls, dtype, skipped);
  const OnDevice<double> numbers(std::vector<double>(uploaded.list().number));
  const DeviceMemory scratch(cuda::scratch_bytes(uploaded.list()));
  kernel(uploaded.list(), numbers.data(), scratch.data(), nullptr);
  return numbers.read();
}

using HoldBackFields = std::tuple<Address, Address, Address, std::size_t, float, float>;

std::vector<double> hold_back(const std::vector<HoldBackFields>& fields, const std::string& dtype,
                              std::size_t skipped) {
  std::vector<compute::HoldBack> calls;
  for (const auto& [gradient, held, next_held, count, scale, momentum] : fields) {
    calls.push_back({.gradient = pointer(gradient),
                     .dtype = dtype_from_name(dtype),
                     .held = floats(held),
                     .next_held = floats(next_held),
                     .count = count,
                     .scale = scale,
                     .momentum = momentum});
  }
  return run(cuda::hold_back, calls, dtype, skipped);
}

using GatherFields = std::tuple<Address, Address, Address, std::size_t, float>;

std::vector<double> gather(const std::vector<GatherFields>& fields, const std::string& dtype, std::size_t skipped) {
  std::vector<compute::Gather> calls;
  for (const auto& [gradient, held, buffer, count, scale] : fields) {
    calls.push_back({.gradient = pointer(gradient),
                     .dtype = dtype_from_name(dtype),
                     .held = floats(held),
                     .buffer = pointer(buffer),
                     .count = count,
                     .scale = scale});
  }
  return run(cuda::gather, calls, dtype, skipped);
}

using ScatterFields = std::tuple<Address, Address, std::size_t, float>;

std::vector<double> scatter(const std::vector<ScatterFields>& fields, const std::string& dtype, std::size_t skipped) {
  std::vector<compute::Scatter> calls;
  for (const auto& [gradient, buffer, count, scale] : fields) {
    calls.push_back({.gradient = pointer(gradient),
                     .dtype = dtype_from_name(dtype),
                     .buffer = pointer(buffer),
                     .count = count,
                     .scale = scale});
  }
  return run(cuda::scatter, calls, dtype, skipped);
}

using SquaresFields = std::tuple<Address, std::size_t, float>;

std::vector<double> sum_of_squares(const std::vector<SquaresFields>& fields, const std::string& dtype,
                                   std::size_t skipped) {
  std::vector<cuda::SumOfSquares> calls;
  for (const auto& [source, count, scale] : fields) {
    calls.push_back({.source = pointer(source), .count = count, .scale = scale});
  }
  return run(cuda::sum_of_squares, calls, dtype, skipped);
}

using StepFields =
    std::tuple<Address, Address, std::string, Address, Address, std::size_t, float, float, float, float, float>;

void momentum_step(const std::vector<StepFields>& fields, const std::string& dtype, std::size_t skipped) {
  std::vector<compute::MomentumStep> calls;
  for (const auto& [weight, parameter, parameter_dtype, gradient, momentum, count, gradient_scale, weight_decay, factor,
                    inner_rate, outer_rate] : fields) {
    calls.push_back({.weight = floats(weight),
                     .parameter = pointer(parameter),
                     .parameter_dtype = dtype_from_name(parameter_dtype),
                     .gradient = pointer(gradient),
                     .gradient_dtype = dtype_from_name(dtype),
                     .momentum = floats(momentum),
                     .count = count,
                     .gradient_scale = gradient_scale,
                     .weight_decay = weight_decay,
                     .factor = factor,
                     .inner_rate = inner_rate,
                     .outer_rate = outer_rate});
  }
  const Uploaded<compute::MomentumStep> uploaded(calls, dtype, skipped);
  cuda::momentum_step(uploaded.list(), nullptr);
  cuda::synchronize(nullptr);
}

void reduce(const std::vector<Address>& destinations, const std::vector<Address>& sources, std::size_t count,
            const std::string& dtype, const std::string& op, int divisor) {
  std::vector<void*> to;
  for (const Address address : destinations) {
    to.push_back(pointer(address));
  }
  std::vector<const void*> from;
  for (const Address address : sources) {
    from.push_back(pointer(address));
  }
  cuda::reduce(to, from, count, {.dtype = dtype_from_name(dtype), .op = reduce_op_from_name(op), .divisor = divisor},
               nullptr);
  cuda::synchronize(nullptr);
}

void cast(Address destination, const std::string& destination_dtype, Address source, const std::string& source_dtype,
          std::size_t count, float scale) {
  cuda::cast(pointer(destination), dtype_from_name(destination_dtype), pointer(source), dtype_from_name(source_dtype),
             count, scale, nullptr);
  cuda::synchronize(nullptr);
}

std::uint64_t count_nonfinite(Address source, const std::string& dtype, std::size_t count) {
  const OnDevice<std::uint64_t> found(std::vector<std::uint64_t>(1));
  cuda::count_nonfinite(pointer(source), dtype_from_name(dtype), count, found.data(), nullptr);
  return found.read().front();
}

void write(const DeviceMemory& memory, const py::bytes& bytes) {
  const std::string_view text = bytes;
  if (text.size() != memory.bytes()) {
    throw Error(ErrorKind::value,
                "the memory has " + std::to_string(memory.bytes()) + " bytes, not " + std::to_string(text.size()));
  }
  cuda::copy(memory.data(), text.data(), text.size(), nullptr);
  cuda::synchronize(nullptr);
}

py::bytes read(const DeviceMemory& memory) {
  std::string text(memory.bytes(), '\0');
  cuda::copy(text.data(), memory.data(), text.size(), nullptr);
  cuda::synchronize(nullptr);
  return text;
}

void bind_kernels(py::module_& module) {
  py::class_<DeviceMemory>(module, "Memory", "Memory of the device.")
      .def(py::init<std::size_t>(), py::arg("bytes"))
      .def_property_readonly("address", [](const DeviceMemory& memory) { return Address(memory.data()); })
      .def("write", &write, py::arg("bytes"))
      .def("read", &read);
  const py::call_guard<py::gil_scoped_release> without_gil;
  module.def("reduce", &reduce, py::arg("destinations"), py::arg("sources"), py::arg("count"), py::arg("dtype"),
             py::arg("op"), py::arg("divisor") = 1, without_gil);
  module.def("cast", &cast, py::arg("destination"), py::arg("destination_dtype"), py::arg("source"),
             py::arg("source_dtype"), py::arg("count"), py::arg("scale") = 1.0F, without_gil);
  module.def("count_nonfinite", &count_nonfinite, py::arg("source"), py::arg("dtype"), py::arg("count"), without_gil);
  const auto define = [&](const char* name, auto function, const char* fields) {
    module.def(name, function, py::arg("calls"), py::arg("dtype"), py::arg("skipped") = 0, without_gil, fields);
  };
  define("hold_back", &hold_back, "Of each call: gradient, held, next_held, count, scale, momentum. Returns norms.");
  define("gather", &gather, "Of each call: gradient, held, buffer, count, scale. Returns norms.");
  define("scatter", &scatter, "Of each call: gradient, buffer, count, scale. Returns norms.");
  define("sum_of_squares", &sum_of_squares, "Of each call: source, count, scale.");
  define("momentum_step", &momentum_step,
         "Of each call: weight, parameter, parameter_dtype, gradient, momentum, count, gradient_scale, weight_decay, "
         "factor, inner_rate, outer_rate.");
}
#endif

}  // namespace

void bind_cuda(py::module_& module) {
  py::module_ submodule = module.def_submodule("cuda", "The CUDA kernels on raw addresses, for tests and benchmarks.");
#ifdef GRADIENTFLOW_HAS_CUDA
  submodule.attr("built") = true;
  submodule.def("device_count", &cuda::device_count, "How many devices there are; 0 without a driver.");
  bind_kernels(submodule);
#else
  submodule.attr("built") = false;
  submodule.def("device_count", [] { return 0; }, "How many devices there are; 0 without a driver.");
#endif
}

}  // namespace gradientflow::bindings

// CUDA kernels on raw device addresses, for their benchmark and for tests. All work is queued in the default stream of
// the thread's current device. The caller keeps the memory alive, and is responsible for valid addresses.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <gradientflow/base/dtype.hpp>
#include <gradientflow/base/error.hpp>
#include <gradientflow/compute/cuda/owned.hpp>
#include <gradientflow/compute/cuda/runtime.hpp>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "call_fields.hpp"
#include "native.hpp"
#include "top_k_calls.hpp"

namespace gradientflow::native {
namespace {

namespace py = pybind11;
namespace cuda = compute::cuda;
using Address = std::uintptr_t;
using cuda::DeviceMemory;

constexpr cuda::Stream stream = nullptr;

// ---- kernels, ready to be started -----------------------------------------------------------------------------------

// A copy of values on the device.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : memory_(values.size() * sizeof(T)) {
    cuda::runtime().copy(memory_.data(), values.data(), memory_.bytes(), stream);
    cuda::runtime().synchronize(stream);
  }
  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  [[nodiscard]] std::vector<T> read() const {
    std::vector<T> values(memory_.bytes() / sizeof(T));
    cuda::runtime().copy(values.data(), memory_.data(), memory_.bytes(), stream);
    cuda::runtime().synchronize(stream);
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

// A kernel with its arguments on the device, prepared for repeated launches.
class Launch {
 public:
  using Numbers = std::vector<double>;

  // `start` queues the kernel in the stream, `read` waits for the numbers that it computes.
  explicit Launch(std::function<void()> start, std::function<Numbers()> read = {})
      : start_(std::move(start)), read_(std::move(read)) {}

  [[nodiscard]] Numbers run() const {
    start_();
    if (read_) {
      return read_();
    }
    cuda::runtime().synchronize(stream);
    return {};
  }

  // Returns the mean time of `repeats` consecutive launches, by the device's clock.
  [[nodiscard]] double microseconds(std::size_t repeats) const {
    const cuda::OwnedEvent begin(cuda::EventKind::time);
    const cuda::OwnedEvent end(cuda::EventKind::time);
    cuda::runtime().record(begin.get(), stream);
    for (std::size_t k = 0; k < repeats; ++k) {
      start_();
    }
    cuda::runtime().record(end.get(), stream);
    cuda::runtime().synchronize_event(end.get());
    return cuda::runtime().milliseconds(begin.get(), end.get()) * 1e3 / static_cast<double>(repeats);
  }

 private:
  std::function<void()> start_;
  std::function<Numbers()> read_;
};

// A kernel that computes one number for each call.
template <class Call>
using NumbersKernel = void (cuda::Runtime::*)(const cuda::CallList<Call>&, double*, void*, cuda::Stream) const;

template <class Call>
Launch with_numbers(NumbersKernel<Call> kernel, const std::vector<Call>& calls, const std::string& dtype,
                    std::size_t skipped) {
  struct Memory {
    Uploaded<Call> calls;
    OnDevice<double> numbers;
    DeviceMemory scratch;
  };
  Uploaded<Call> uploaded(calls, dtype, skipped);
  OnDevice<double> numbers(std::vector<double>(uploaded.list().number));
  DeviceMemory scratch(cuda::scratch_bytes(uploaded.list()));
  const auto memory = std::make_shared<const Memory>(
      Memory{.calls = std::move(uploaded), .numbers = std::move(numbers), .scratch = std::move(scratch)});
  return Launch(
      [kernel, memory] {
        (cuda::runtime().*kernel)(memory->calls.list(), memory->numbers.data(), memory->scratch.data(), stream);
      },
      [memory] { return memory->numbers.read(); });
}

// Returns the calls of a list, each given as a sequence of its fields.
template <class Call>
std::vector<Call> calls_of(const std::vector<py::tuple>& fields) {
  std::vector<Call> calls;
  for (const py::tuple& values : fields) {
    calls.push_back(call_of<Call>(values));
  }
  return calls;
}

using SquaresFields = std::tuple<Address, std::size_t, float>;

Launch sum_of_squares(const std::vector<SquaresFields>& fields, const std::string& dtype, std::size_t skipped) {
  std::vector<cuda::SumOfSquares> calls;
  for (const auto& [source, count, scale] : fields) {
    calls.push_back({.source = pointer_to(source), .count = count, .scale = scale});
  }
  return with_numbers(&cuda::Runtime::sum_of_squares, calls, dtype, skipped);
}

Launch reduce(const std::vector<Address>& destinations, const std::vector<Address>& sources, std::size_t count,
              const std::string& dtype, const std::string& op, int divisor) {
  const std::vector<void*> to = pointers_to<void>(destinations);
  const std::vector<const void*> from = pointers_to<const void>(sources);
  const compute::Reduction reduction{
      .dtype = dtype_from_name(dtype), .op = reduce_op_from_name(op), .divisor = divisor};
  return Launch([=] { cuda::runtime().reduce(to, from, count, reduction, stream); });
}

Launch cast(Address destination, const std::string& destination_dtype, Address source, const std::string& source_dtype,
            std::size_t count, float scale) {
  const DType to = dtype_from_name(destination_dtype);
  const DType from = dtype_from_name(source_dtype);
  return Launch(
      [=] { cuda::runtime().cast(pointer_to(destination), to, pointer_to(source), from, count, scale, stream); });
}

Launch count_nonfinite(Address source, const std::string& dtype, std::size_t count) {
  const auto found = std::make_shared<const OnDevice<std::uint64_t>>(std::vector<std::uint64_t>(1));
  const DType of = dtype_from_name(dtype);
  return Launch([=] { cuda::runtime().count_nonfinite(pointer_to(source), of, count, found->data(), stream); },
                [found] { return Launch::Numbers{static_cast<double>(found->read().front())}; });
}

// Computes the number of entries sent, the threshold, and the number of infinite and NaN elements.
Launch select(const SelectFields& fields) {
  const compute::Select call = select_call(fields);
  const auto scratch = std::make_shared<const DeviceMemory>(cuda::runtime().scratch_bytes(call));
  const auto selected = std::make_shared<const OnDevice<compute::Selected>>(std::vector<compute::Selected>(1));
  return Launch([=] { cuda::runtime().select(call, selected->data(), scratch->data(), stream); },
                [selected] {
                  const compute::Selected found = selected->read().front();
                  return Launch::Numbers{static_cast<double>(found.sent), found.threshold,
                                         static_cast<double>(found.nonfinite)};
                });
}

// Computes the number of elements written, and 1 + the number of the first invalid block.
Launch combine(Address gradient, const std::string& dtype, float scale, const compute::EntryBlock& block,
               const std::vector<Address>& addresses) {
  const auto blocks = std::make_shared<const std::vector<const std::byte*>>(pointers_to<const std::byte>(addresses));
  const compute::Combine call{.gradient = pointer_to(gradient),
                              .dtype = dtype_from_name(dtype),
                              .scale = scale,
                              .block = block,
                              .blocks = *blocks};
  const auto scratch = std::make_shared<const DeviceMemory>(cuda::runtime().scratch_bytes(call));
  const auto combined = std::make_shared<const OnDevice<cuda::Combined>>(std::vector<cuda::Combined>(1));
  return Launch([=] { cuda::runtime().combine(call, combined->data(), scratch->data(), stream); },
                [blocks, combined] {
                  const cuda::Combined found = combined->read().front();
                  return Launch::Numbers{static_cast<double>(found.written), static_cast<double>(found.bad)};
                });
}

Launch copy(Address destination, Address source, std::size_t bytes) {
  return Launch([=] { cuda::runtime().copy(pointer_to(destination), pointer_to(source), bytes, stream); });
}

// Defines a kernel on a list of calls, which `prepare` makes ready.
template <class Call, class Prepare>
void define_list(py::module_& module, const char* name, Prepare prepare) {
  module.def(
      name,
      [prepare](const std::vector<py::tuple>& fields, const std::string& dtype, std::size_t skipped) {
        const std::vector<Call> calls = calls_of<Call>(fields);
        const py::gil_scoped_release released;
        return prepare(calls, dtype, skipped);
      },
      py::arg("calls"), py::arg("dtype"), py::arg("skipped") = 0, ("Of each call: " + field_names<Call>()).c_str());
}

template <class Call>
void define_norms(py::module_& module, const char* name, NumbersKernel<Call> kernel) {
  define_list<Call>(module, name,
                    [kernel](const std::vector<Call>& calls, const std::string& dtype, std::size_t skipped) {
                      return with_numbers(kernel, calls, dtype, skipped);
                    });
}

void bind_kernels(py::module_& module) {
  py::class_<Launch>(module, "Launch", "A kernel with all that it needs on the device, to be started again and again.")
      .def("run", &Launch::run, without_gil, "Start it, and wait for the numbers that it works out.")
      .def("microseconds", &Launch::microseconds, py::arg("repeats"), without_gil,
           "Time so many in a row by the clock of the device, and give that of one.");

  module.def("reduce", &reduce, py::arg("destinations"), py::arg("sources"), py::arg("count"), py::arg("dtype"),
             py::arg("op"), py::arg("divisor") = 1, without_gil);
  module.def("cast", &cast, py::arg("destination"), py::arg("destination_dtype"), py::arg("source"),
             py::arg("source_dtype"), py::arg("count"), py::arg("scale") = 1.0F, without_gil);
  module.def("count_nonfinite", &count_nonfinite, py::arg("source"), py::arg("dtype"), py::arg("count"), without_gil);
  each_step([&]<class Step>(const char* name) {
    define_list<Step>(module, name, [](const std::vector<Step>& calls, const std::string& dtype, std::size_t skipped) {
      const auto uploaded = std::make_shared<const Uploaded<Step>>(calls, dtype, skipped);
      return Launch([uploaded] { cuda::runtime().step(uploaded->list(), stream); });
    });
  });
  define_norms<compute::UpdateResidual>(module, "update_residual", &cuda::Runtime::update_residual);
  define_norms<compute::Gather>(module, "gather", &cuda::Runtime::gather);
  define_norms<compute::Scatter>(module, "scatter", &cuda::Runtime::scatter);
  module.def("sum_of_squares", &sum_of_squares, py::arg("calls"), py::arg("dtype"), py::arg("skipped") = 0, without_gil,
             "Of each call: source, count, scale. Computes sums.");
  module.def("select", &select, py::arg("call"), without_gil);
  module.def("combine", &combine, py::arg("gradient"), py::arg("dtype"), py::arg("scale"), py::arg("block"),
             py::arg("blocks"), without_gil);
  module.def("copy", &copy, py::arg("destination"), py::arg("source"), py::arg("bytes"), without_gil);
}

// ---- memory ---------------------------------------------------------------------------------------------------------

// A separate type for pybind11: the package binds DeviceMemory for its arrays.
class RawMemory : public DeviceMemory {
 public:
  using DeviceMemory::DeviceMemory;
};

// Returns the address of a contiguous buffer of the caller, which must have the size of the memory.
void* bytes_of(const py::buffer_info& buffer, const DeviceMemory& memory) {
  const auto bytes = static_cast<std::size_t>(buffer.size * buffer.itemsize);
  if (bytes != memory.bytes()) {
    throw Error(ErrorKind::value,
                "the memory has " + std::to_string(memory.bytes()) + " bytes, not " + std::to_string(bytes));
  }
  return buffer.ptr;
}

void copy_and_wait(void* destination, const void* source, std::size_t bytes) {
  const py::gil_scoped_release released;
  cuda::runtime().copy(destination, source, bytes, stream);
  cuda::runtime().synchronize(stream);
}

void write(const RawMemory& memory, const py::buffer& values) {
  const py::buffer_info buffer = values.request();
  copy_and_wait(memory.data(), bytes_of(buffer, memory), memory.bytes());
}

py::bytes read(const RawMemory& memory) {
  std::string text(memory.bytes(), '\0');
  copy_and_wait(text.data(), memory.data(), text.size());
  return text;
}

void read_into(const RawMemory& memory, const py::buffer& values) {
  const py::buffer_info buffer = values.request(/*writable=*/true);
  copy_and_wait(bytes_of(buffer, memory), memory.data(), memory.bytes());
}

void bind_memory(py::module_& module) {
  py::class_<RawMemory>(module, "Memory", "Memory of the device.")
      .def(py::init<std::size_t>(), py::arg("bytes"))
      .def_property_readonly("address", [](const RawMemory& memory) { return Address(memory.data()); })
      .def("write", &write, py::arg("values"), "Fill it from a contiguous buffer of as many bytes.")
      .def("read", &read)
      .def("read_into", &read_into, py::arg("values"), "Copy it to a contiguous buffer of as many bytes.");
}

}  // namespace
}  // namespace gradientflow::native

PYBIND11_MODULE(cuda, module) {
  using namespace gradientflow::native;  // NOLINT(google-build-using-namespace)
  translate_errors();
  bind_memory(module);
  bind_kernels(module);
}

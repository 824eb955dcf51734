// CPU kernels on raw addresses, at a chosen SIMD level, for their benchmark and for tests. The caller keeps the memory
// alive, and is responsible for valid addresses.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <gradientflow/base/dtype.hpp>
#include <gradientflow/compute/cpu/rep_movsb.hpp>
#include <gradientflow/compute/kernels.hpp>
#include <gradientflow/compute/simd.hpp>
#include <gradientflow/compute/sum_of_squares.hpp>
#include <gradientflow/compute/top_k.hpp>
#include <gradientflow/compute/wire.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "call_fields.hpp"
#include "native.hpp"
#include "top_k_calls.hpp"

namespace gradientflow::native {
namespace {

namespace py = pybind11;
using compute::SimdLevel;
using compute::Store;

Store store_of(bool streaming) { return streaming ? Store::streaming : Store::cached; }

void reduce(const std::string& level, const std::vector<std::uintptr_t>& destinations,
            const std::vector<std::uintptr_t>& sources, std::size_t count, const std::string& dtype,
            const std::string& op, int divisor, bool streaming) {
  const std::vector<void*> to = pointers_to<void>(destinations);
  const std::vector<const void*> from = pointers_to<const void>(sources);
  compute::reduce_at(compute::simd_from_name(level), to, from, count,
                     {.dtype = dtype_from_name(dtype),
                      .op = reduce_op_from_name(op),
                      .divisor = divisor,
                      .store = store_of(streaming)});
}

void cast(const std::string& level, std::uintptr_t destination, const std::string& destination_dtype,
          std::uintptr_t source, const std::string& source_dtype, std::size_t count, float scale) {
  compute::cast_at(compute::simd_from_name(level), pointer_to(destination), dtype_from_name(destination_dtype),
                   pointer_to(source), dtype_from_name(source_dtype), count, scale);
}

void encode(const std::string& level, const std::string& wire, std::uintptr_t segment, std::uintptr_t values,
            std::size_t count, float factor) {
  compute::encode_at(compute::simd_from_name(level), wire_from_name(wire), pointer_to<std::byte>(segment),
                     pointer_to<const std::byte>(values), count, factor);
}

void decode(const std::string& level, const std::string& wire, std::uintptr_t values, std::uintptr_t segment,
            std::size_t count, float factor) {
  compute::decode_at(compute::simd_from_name(level), wire_from_name(wire), pointer_to<std::byte>(values),
                     pointer_to<const std::byte>(segment), count, factor);
}

void copy(const std::string& level, std::uintptr_t destination, std::uintptr_t source, std::size_t bytes,
          bool streaming) {
  compute::copy_at(compute::simd_from_name(level), pointer_to(destination), pointer_to(source), bytes,
                   store_of(streaming));
}

void copy_rep_movsb(std::uintptr_t destination, std::uintptr_t source, std::size_t bytes) {
  compute::copy_rep_movsb(pointer_to(destination), pointer_to(source), bytes);
}

std::size_t count_nonfinite(const std::string& level, std::uintptr_t source, const std::string& dtype,
                            std::size_t count) {
  return compute::count_nonfinite_at(compute::simd_from_name(level), pointer_to(source), dtype_from_name(dtype), count);
}

double sum_of_squares(const std::string& level, std::uintptr_t source, const std::string& dtype, std::size_t count,
                      float scale) {
  return compute::sum_of_squares_at(compute::simd_from_name(level), pointer_to(source), dtype_from_name(dtype), count,
                                    scale);
}

// Defines the function of a kernel, whose arguments are the level and then the kernel's fields.
template <class Call, class Kernel>
void define(py::module_& module, const char* name, Kernel kernel) {
  module.def(
      name,
      [kernel](const std::string& level, const py::args& values, const py::kwargs& named) {
        const Call call = call_of<Call>(values, named);
        const py::gil_scoped_release released;
        return kernel(compute::simd_from_name(level), call);
      },
      ("Arguments: level, " + field_names<Call>()).c_str());
}

// Returns the number of entries sent, the threshold, and the number of infinite and NaN elements.
std::tuple<std::size_t, float, std::size_t> select(const std::string& level, const SelectFields& fields) {
  const compute::Selected selected = compute::select_at(compute::simd_from_name(level), select_call(fields));
  return {selected.sent, selected.threshold, selected.nonfinite};
}

std::size_t combine(const std::string& level, std::uintptr_t gradient, const std::string& dtype, float scale,
                    const compute::EntryBlock& block, const std::vector<std::uintptr_t>& blocks) {
  const std::vector<const std::byte*> data = pointers_to<const std::byte>(blocks);
  return compute::combine_at(compute::simd_from_name(level), {.gradient = pointer_to(gradient),
                                                              .dtype = dtype_from_name(dtype),
                                                              .scale = scale,
                                                              .block = block,
                                                              .blocks = data});
}

std::vector<std::string> levels() {
  std::vector<std::string> names;
  for (const SimdLevel level : {SimdLevel::baseline, SimdLevel::avx2, SimdLevel::avx512}) {
    if (level <= compute::best_simd()) {
      names.emplace_back(compute::name_of(level));
    }
  }
  return names;
}

void bind(py::module_& module) {
  module.def("reduce", &reduce, py::arg("level"), py::arg("destinations"), py::arg("sources"), py::arg("count"),
             py::arg("dtype"), py::arg("op"), py::arg("divisor") = 1, py::arg("streaming") = false, without_gil);
  module.def("cast", &cast, py::arg("level"), py::arg("destination"), py::arg("destination_dtype"), py::arg("source"),
             py::arg("source_dtype"), py::arg("count"), py::arg("scale") = 1.0F, without_gil);
  module.def("encode", &encode, py::arg("level"), py::arg("wire"), py::arg("segment"), py::arg("values"),
             py::arg("count"), py::arg("factor") = 1.0F, without_gil);
  module.def("decode", &decode, py::arg("level"), py::arg("wire"), py::arg("values"), py::arg("segment"),
             py::arg("count"), py::arg("factor") = 1.0F, without_gil);
  module.def("copy", &copy, py::arg("level"), py::arg("destination"), py::arg("source"), py::arg("bytes"),
             py::arg("streaming") = false, without_gil);
  module.def("copy_rep_movsb", &copy_rep_movsb, py::arg("destination"), py::arg("source"), py::arg("bytes"),
             without_gil);
  module.def("count_nonfinite", &count_nonfinite, py::arg("level"), py::arg("source"), py::arg("dtype"),
             py::arg("count"), without_gil);
  define<compute::UpdateResidual>(module, "update_residual", &compute::update_residual_at);
  define<compute::Gather>(module, "gather", &compute::gather_at);
  define<compute::Scatter>(module, "scatter", &compute::scatter_at);
  each_step([&module]<class Step>(const char* name) { define<Step>(module, name, &compute::step_at<Step>); });
  module.def("sum_of_squares", &sum_of_squares, py::arg("level"), py::arg("source"), py::arg("dtype"), py::arg("count"),
             py::arg("scale") = 1.0F, without_gil);
  py::class_<compute::EntryBlock>(module, "Block")
      .def(py::init<>())
      .def_readonly("count", &compute::EntryBlock::count)
      .def_readonly("k", &compute::EntryBlock::k)
      .def_readonly("index_begin", &compute::EntryBlock::index_begin)
      .def_readonly("value_begin", &compute::EntryBlock::value_begin)
      .def_readonly("bytes", &compute::EntryBlock::bytes)
      .def_property_readonly("values", [](const compute::EntryBlock& b) { return std::string(name_of(b.values)); })
      .def_property_readonly("indices", [](const compute::EntryBlock& b) {
        return std::array{"words", "offsets", "bitmap"}[static_cast<std::size_t>(b.indices)];
      });
  module.def(
      "block_of",
      [](std::size_t count, std::size_t k, const std::string& values) {
        return compute::block_of(count, k, dtype_from_name(values));
      },
      py::arg("count"), py::arg("k"), py::arg("values"));
  module.def("select", &select, py::arg("level"), py::arg("call"), without_gil,
             "Fields of the tuple `call`, in this order: gradient, dtype, residual, next_residual, velocity, "
             "next_velocity, block, data, how, scale, momentum, masking, seed, threshold.");
  module.def("combine", &combine, py::arg("level"), py::arg("gradient"), py::arg("dtype"), py::arg("scale"),
             py::arg("block"), py::arg("blocks"), without_gil);
  module.def("levels", &levels, "The SIMD levels that run here, lowest first.");
  module.def(
      "active_level", [] { return std::string(compute::name_of(compute::active_simd())); },
      "The SIMD level that the library uses.");
}

}  // namespace
}  // namespace gradientflow::native

PYBIND11_MODULE(compute, module) {
  gradientflow::native::translate_errors();
  gradientflow::native::bind(module);
}

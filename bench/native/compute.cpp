// The CPU kernels on raw addresses, at a chosen SIMD level, for their benchmark and for tests. The caller keeps the
// memory alive, and is responsible for valid addresses.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <gradientflow/base/dtype.hpp>
#include <gradientflow/compute/adam_step.hpp>
#include <gradientflow/compute/chunks.hpp>
#include <gradientflow/compute/cpu/rep_movsb.hpp>
#include <gradientflow/compute/kernels.hpp>
#include <gradientflow/compute/local_updates.hpp>
#include <gradientflow/compute/optimizer_steps.hpp>
#include <gradientflow/compute/replica_steps.hpp>
#include <gradientflow/compute/simd.hpp>
#include <gradientflow/compute/top_k.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "native.hpp"
#include "top_k_calls.hpp"

namespace gradientflow::native {
namespace {

namespace py = pybind11;
using compute::SimdLevel;
using compute::Store;

void* pointer(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): that is what the caller has
}

Store store_of(bool streaming) { return streaming ? Store::streaming : Store::cached; }

void reduce(const std::string& level, const std::vector<std::uintptr_t>& destinations,
            const std::vector<std::uintptr_t>& sources, std::size_t count, const std::string& dtype,
            const std::string& op, int divisor, bool streaming) {
  std::vector<void*> to;
  for (const std::uintptr_t address : destinations) {
    to.push_back(pointer(address));
  }
  std::vector<const void*> from;
  for (const std::uintptr_t address : sources) {
    from.push_back(pointer(address));
  }
  compute::reduce_at(compute::simd_from_name(level), to, from, count,
                     {.dtype = dtype_from_name(dtype),
                      .op = reduce_op_from_name(op),
                      .divisor = divisor,
                      .store = store_of(streaming)});
}

void cast(const std::string& level, std::uintptr_t destination, const std::string& destination_dtype,
          std::uintptr_t source, const std::string& source_dtype, std::size_t count, float scale) {
  compute::cast_at(compute::simd_from_name(level), pointer(destination), dtype_from_name(destination_dtype),
                   pointer(source), dtype_from_name(source_dtype), count, scale);
}

void copy(const std::string& level, std::uintptr_t destination, std::uintptr_t source, std::size_t bytes,
          bool streaming) {
  compute::copy_at(compute::simd_from_name(level), pointer(destination), pointer(source), bytes, store_of(streaming));
}

void copy_rep_movsb(std::uintptr_t destination, std::uintptr_t source, std::size_t bytes) {
  compute::copy_rep_movsb(pointer(destination), pointer(source), bytes);
}

std::size_t count_nonfinite(const std::string& level, std::uintptr_t source, const std::string& dtype,
                            std::size_t count) {
  return compute::count_nonfinite_at(compute::simd_from_name(level), pointer(source), dtype_from_name(dtype), count);
}

float* floats(std::uintptr_t address) { return static_cast<float*>(pointer(address)); }

double update_residual(const std::string& level, std::uintptr_t gradient, const std::string& dtype,
                       std::uintptr_t residual, std::uintptr_t next_residual, std::size_t count, float scale,
                       float momentum, bool streaming) {
  return compute::update_residual_at(compute::simd_from_name(level), {.gradient = pointer(gradient),
                                                                      .dtype = dtype_from_name(dtype),
                                                                      .residual = floats(residual),
                                                                      .next_residual = floats(next_residual),
                                                                      .count = count,
                                                                      .scale = scale,
                                                                      .momentum = momentum,
                                                                      .store = store_of(streaming)});
}

double gather(const std::string& level, std::uintptr_t gradient, const std::string& dtype, std::uintptr_t residual,
              std::uintptr_t buffer, std::size_t count, float scale) {
  return compute::gather_at(compute::simd_from_name(level), {.gradient = pointer(gradient),
                                                             .dtype = dtype_from_name(dtype),
                                                             .residual = floats(residual),
                                                             .buffer = pointer(buffer),
                                                             .count = count,
                                                             .scale = scale});
}

double scatter(const std::string& level, std::uintptr_t gradient, const std::string& dtype, std::uintptr_t buffer,
               std::size_t count, float scale) {
  return compute::scatter_at(compute::simd_from_name(level), {.gradient = pointer(gradient),
                                                              .dtype = dtype_from_name(dtype),
                                                              .buffer = pointer(buffer),
                                                              .count = count,
                                                              .scale = scale});
}

double sum_of_squares(const std::string& level, std::uintptr_t source, const std::string& dtype, std::size_t count,
                      float scale) {
  return compute::sum_of_squares_at(compute::simd_from_name(level), pointer(source), dtype_from_name(dtype), count,
                                    scale);
}

void momentum_step(const std::string& level, std::uintptr_t weight, std::uintptr_t gradient,
                   const std::string& gradient_dtype, std::uintptr_t momentum, std::size_t count,
                   std::uintptr_t parameter, const std::string& parameter_dtype, float gradient_scale,
                   float weight_decay, float factor, float inner_rate, float outer_rate) {
  compute::momentum_step_at(compute::simd_from_name(level), {.weight = floats(weight),
                                                             .parameter = pointer(parameter),
                                                             .parameter_dtype = dtype_from_name(parameter_dtype),
                                                             .gradient = pointer(gradient),
                                                             .gradient_dtype = dtype_from_name(gradient_dtype),
                                                             .momentum = floats(momentum),
                                                             .count = count,
                                                             .gradient_scale = gradient_scale,
                                                             .weight_decay = weight_decay,
                                                             .factor = factor,
                                                             .inner_rate = inner_rate,
                                                             .outer_rate = outer_rate});
}

void adam_step(const std::string& level, std::uintptr_t weight, std::uintptr_t gradient,
               const std::string& gradient_dtype, std::uintptr_t mean, std::uintptr_t mean_square, std::size_t count,
               std::uintptr_t parameter, const std::string& parameter_dtype, const std::array<float, 10>& rates) {
  compute::adam_step_at(compute::simd_from_name(level), {.weight = floats(weight),
                                                         .parameter = pointer(parameter),
                                                         .parameter_dtype = dtype_from_name(parameter_dtype),
                                                         .gradient = pointer(gradient),
                                                         .gradient_dtype = dtype_from_name(gradient_dtype),
                                                         .mean = floats(mean),
                                                         .mean_square = floats(mean_square),
                                                         .count = count,
                                                         .gradient_scale = rates[0],
                                                         .weight_decay = rates[1],
                                                         .rate = rates[2],
                                                         .root = rates[3],
                                                         .beta_1 = rates[4],
                                                         .alpha_1 = rates[5],
                                                         .beta_2 = rates[6],
                                                         .alpha_2 = rates[7],
                                                         .epsilon = rates[8],
                                                         .keep = rates[9]});
}

void glu_step(const std::string& level, std::uintptr_t weight, std::uintptr_t pre_weight, std::uintptr_t gradient,
              const std::string& gradient_dtype, std::size_t count, bool refreshes, float rate, float gradient_scale,
              float weight_decay, float alpha, float beta, float global_scale) {
  compute::glu_step_at(compute::simd_from_name(level), {.weight = floats(weight),
                                                        .pre_weight = floats(pre_weight),
                                                        .gradient = pointer(gradient),
                                                        .gradient_dtype = dtype_from_name(gradient_dtype),
                                                        .count = count,
                                                        .refreshes = refreshes,
                                                        .rate = rate,
                                                        .gradient_scale = gradient_scale,
                                                        .weight_decay = weight_decay,
                                                        .alpha = alpha,
                                                        .beta = beta,
                                                        .global_scale = global_scale});
}

void dc_step(const std::string& level, std::uintptr_t weight, std::uintptr_t mean_square,
             std::uintptr_t gradient_weight, std::uintptr_t gradient, const std::string& gradient_dtype,
             std::size_t count, float rate, float gradient_scale, float weight_decay, float lambda_0, float decay,
             float epsilon) {
  compute::dc_step_at(compute::simd_from_name(level), {.weight = floats(weight),
                                                       .mean_square = floats(mean_square),
                                                       .gradient_weight = floats(gradient_weight),
                                                       .gradient = pointer(gradient),
                                                       .gradient_dtype = dtype_from_name(gradient_dtype),
                                                       .count = count,
                                                       .rate = rate,
                                                       .gradient_scale = gradient_scale,
                                                       .weight_decay = weight_decay,
                                                       .lambda_0 = lambda_0,
                                                       .decay = decay,
                                                       .epsilon = epsilon});
}

void replica_step(const std::string& level, std::uintptr_t weight, std::uintptr_t before, std::uintptr_t sum,
                  std::uintptr_t gradient, const std::string& dtype, std::size_t count, float rate,
                  float gradient_scale, float weight_decay) {
  compute::replica_step_at(compute::simd_from_name(level), {.weight = floats(weight),
                                                            .before = floats(before),
                                                            .sum = floats(sum),
                                                            .gradient = pointer(gradient),
                                                            .gradient_dtype = dtype_from_name(dtype),
                                                            .count = count,
                                                            .rate = rate,
                                                            .gradient_scale = gradient_scale,
                                                            .weight_decay = weight_decay});
}

void round_step(const std::string& level, std::uintptr_t weight, std::uintptr_t before, std::uintptr_t mean,
                std::uintptr_t sum, std::uintptr_t gradient, const std::string& dtype, std::size_t count, float rate,
                float gradient_scale, float weight_decay) {
  compute::round_step_at(compute::simd_from_name(level), {.weight = floats(weight),
                                                          .before = floats(before),
                                                          .mean = floats(mean),
                                                          .sum = floats(sum),
                                                          .gradient = pointer(gradient),
                                                          .gradient_dtype = dtype_from_name(dtype),
                                                          .count = count,
                                                          .rate = rate,
                                                          .gradient_scale = gradient_scale,
                                                          .weight_decay = weight_decay});
}

// Returns the number of entries sent, the threshold, and the number of infinite and NaN elements.
std::tuple<std::size_t, float, std::size_t> select(const std::string& level, const SelectFields& fields) {
  const compute::Selected selected = compute::select_at(compute::simd_from_name(level), select_call(fields));
  return {selected.sent, selected.threshold, selected.nonfinite};
}

std::size_t combine(const std::string& level, std::uintptr_t gradient, const std::string& dtype, float scale,
                    const compute::EntryBlock& block, const std::vector<std::uintptr_t>& blocks) {
  const std::vector<const std::byte*> data = blocks_at(blocks);
  return compute::combine_at(
      compute::simd_from_name(level),
      {.gradient = pointer(gradient), .dtype = dtype_from_name(dtype), .scale = scale, .block = block, .blocks = data});
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

void bind(py::module_& compute) {
  compute.def("reduce", &reduce, py::arg("level"), py::arg("destinations"), py::arg("sources"), py::arg("count"),
              py::arg("dtype"), py::arg("op"), py::arg("divisor") = 1, py::arg("streaming") = false, without_gil);
  compute.def("cast", &cast, py::arg("level"), py::arg("destination"), py::arg("destination_dtype"), py::arg("source"),
              py::arg("source_dtype"), py::arg("count"), py::arg("scale") = 1.0F, without_gil);
  compute.def("copy", &copy, py::arg("level"), py::arg("destination"), py::arg("source"), py::arg("bytes"),
              py::arg("streaming") = false, without_gil);
  compute.def("copy_rep_movsb", &copy_rep_movsb, py::arg("destination"), py::arg("source"), py::arg("bytes"),
              without_gil);
  compute.def("count_nonfinite", &count_nonfinite, py::arg("level"), py::arg("source"), py::arg("dtype"),
              py::arg("count"), without_gil);
  compute.def("update_residual", &update_residual, py::arg("level"), py::arg("gradient"), py::arg("dtype"),
              py::arg("residual"), py::arg("next_residual"), py::arg("count"), py::arg("scale") = 1.0F,
              py::arg("momentum") = 1.0F, py::arg("streaming") = false, without_gil);
  compute.def("gather", &gather, py::arg("level"), py::arg("gradient"), py::arg("dtype"), py::arg("residual"),
              py::arg("buffer"), py::arg("count"), py::arg("scale") = 1.0F, without_gil);
  compute.def("scatter", &scatter, py::arg("level"), py::arg("gradient"), py::arg("dtype"), py::arg("buffer"),
              py::arg("count"), py::arg("scale") = 1.0F, without_gil);
  compute.def("sum_of_squares", &sum_of_squares, py::arg("level"), py::arg("source"), py::arg("dtype"),
              py::arg("count"), py::arg("scale") = 1.0F, without_gil);
  compute.def("momentum_step", &momentum_step, py::arg("level"), py::arg("weight"), py::arg("gradient"),
              py::arg("gradient_dtype"), py::arg("momentum"), py::arg("count"), py::arg("parameter") = 0,
              py::arg("parameter_dtype") = "float16", py::arg("gradient_scale") = 1.0F, py::arg("weight_decay") = 0.0F,
              py::arg("factor") = 0.0F, py::arg("inner_rate") = 1.0F, py::arg("outer_rate") = 1.0F, without_gil);
  compute.def("adam_step", &adam_step, py::arg("level"), py::arg("weight"), py::arg("gradient"),
              py::arg("gradient_dtype"), py::arg("mean"), py::arg("mean_square"), py::arg("count"),
              py::arg("parameter"), py::arg("parameter_dtype"), py::arg("rates"), without_gil,
              "Rates: gradient_scale, weight_decay, rate, root, beta_1, alpha_1, beta_2, alpha_2, epsilon.");
  compute.def("glu_step", &glu_step, py::arg("level"), py::arg("weight"), py::arg("pre_weight"), py::arg("gradient"),
              py::arg("gradient_dtype"), py::arg("count"), py::arg("refreshes"), py::arg("rate"),
              py::arg("gradient_scale"), py::arg("weight_decay"), py::arg("alpha"), py::arg("beta"),
              py::arg("global_scale"), without_gil);
  compute.def("dc_step", &dc_step, py::arg("level"), py::arg("weight"), py::arg("mean_square"),
              py::arg("gradient_weight"), py::arg("gradient"), py::arg("gradient_dtype"), py::arg("count"),
              py::arg("rate"), py::arg("gradient_scale"), py::arg("weight_decay"), py::arg("lambda_0"),
              py::arg("decay"), py::arg("epsilon"), without_gil);
  compute.def("replica_step", &replica_step, py::arg("level"), py::arg("weight"), py::arg("before"), py::arg("sum"),
              py::arg("gradient"), py::arg("dtype"), py::arg("count"), py::arg("rate"), py::arg("gradient_scale"),
              py::arg("weight_decay"), without_gil);
  compute.def("round_step", &round_step, py::arg("level"), py::arg("weight"), py::arg("before"), py::arg("mean"),
              py::arg("sum"), py::arg("gradient"), py::arg("dtype"), py::arg("count"), py::arg("rate"),
              py::arg("gradient_scale"), py::arg("weight_decay"), without_gil);
  py::class_<compute::EntryBlock>(compute, "Block")
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
  compute.def(
      "block_of",
      [](std::size_t count, std::size_t k, const std::string& values) {
        return compute::block_of(count, k, dtype_from_name(values));
      },
      py::arg("count"), py::arg("k"), py::arg("values"));
  compute.def(
      "select", &select, py::arg("level"), py::arg("call"), without_gil,
      "Of the call: gradient, dtype, residual, next_residual, velocity, next_velocity, block, data, how, scale, "
      "momentum, masking, seed, threshold.");
  compute.def("combine", &combine, py::arg("level"), py::arg("gradient"), py::arg("dtype"), py::arg("scale"),
              py::arg("block"), py::arg("blocks"), without_gil);
  compute.def("levels", &levels, "The SIMD levels that run here, lowest first.");
  compute.def(
      "active_level", [] { return std::string(compute::name_of(compute::active_simd())); },
      "The SIMD level that the library uses.");
}

}  // namespace
}  // namespace gradientflow::native

PYBIND11_MODULE(compute, module) {
  gradientflow::native::translate_errors();
  gradientflow::native::bind(module);
}

// gradientflow._core.local_updates: a worker's updates of its own weights between two pulls, and checks for nonfinite
// gradients. In memory of the host. Gradients are given by their address and dtype.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../kernels/base/error.hpp"
#include "../kernels/compute/kernels.hpp"
#include "../kernels/compute/steps/steps.hpp"
#include "bindings.hpp"
#include "gil.hpp"
#include "tensor.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;

const void* gradient_at(std::uintptr_t address) {
  return reinterpret_cast<const void*>(address);  // NOLINT(performance-no-int-to-ptr): an address from Python
}

std::size_t count_nonfinite(const void* source, DType dtype, std::size_t count, DType wire) {
  if (wire == dtype) {
    return compute::count_nonfinite(source, dtype, count);
  }
  std::array<float, 1024> rounded;  // block by block
  std::size_t found = 0;
  for (std::size_t begin = 0; begin < count; begin += rounded.size()) {
    const std::size_t here = std::min(rounded.size(), count - begin);
    compute::cast(rounded.data(), wire, static_cast<const std::byte*>(source) + begin * size_of(dtype), dtype, here,
                  1.0F);
    found += compute::count_nonfinite(rounded.data(), wire, here);
  }
  return found;
}

// Returns a view of float32 numbers in memory of the host; throws unless their number is `count`, if given.
TensorView floats_of(const py::object& object, const char* name, const std::size_t* count = nullptr) {
  TensorView view = view_tensor(object, Access::write, name);
  if (view.dtype != DType::float32 || view.placement) {
    throw Error(ErrorKind::type, std::string(name) + " are float32 in memory of the host");
  }
  if (count != nullptr && view.count != *count) {
    throw Error(ErrorKind::value, std::string(name) + " are " + std::to_string(view.count) + " for " +
                                      std::to_string(*count) + " weights");
  }
  return view;
}

float* floats(const TensorView& view) { return reinterpret_cast<float*>(view.data); }

void sgd_step(const py::object& weights, std::uintptr_t gradient, const std::string& dtype, float rate,
              float gradient_scale, float weight_decay) {
  const TensorView weight = floats_of(weights, "weights");
  const WithoutGil release;
  compute::step(compute::MomentumStep{.weight = floats(weight),
                                      .parameter = nullptr,
                                      .parameter_dtype = DType::float32,
                                      .gradient = gradient_at(gradient),
                                      .gradient_dtype = dtype_from_name(dtype),
                                      .momentum = nullptr,
                                      .count = weight.count,
                                      .gradient_scale = gradient_scale,
                                      .weight_decay = weight_decay,
                                      .inner_rate = rate});
}

void glu_step(const py::object& weights, const py::object& pre_weights, std::uintptr_t gradient,
              const std::string& dtype, bool refreshes, float rate, float gradient_scale, float weight_decay,
              float alpha, float beta, float global_scale) {
  const TensorView weight = floats_of(weights, "weights");
  const TensorView pre_weight = floats_of(pre_weights, "previous weights", &weight.count);
  const WithoutGil release;
  compute::step(compute::GluStep{.weight = floats(weight),
                                 .pre_weight = floats(pre_weight),
                                 .gradient = gradient_at(gradient),
                                 .gradient_dtype = dtype_from_name(dtype),
                                 .count = weight.count,
                                 .refreshes = refreshes,
                                 .rate = rate,
                                 .gradient_scale = gradient_scale,
                                 .weight_decay = weight_decay,
                                 .alpha = alpha,
                                 .beta = beta,
                                 .global_scale = global_scale});
}

void dc_step(const py::object& weights, const py::object& mean_squares, const py::object& gradient_weights,
             std::uintptr_t gradient, const std::string& dtype, float rate, float gradient_scale, float weight_decay,
             float lambda_0, float decay, float epsilon) {
  const TensorView weight = floats_of(weights, "weights");
  const TensorView mean_square = floats_of(mean_squares, "mean squares", &weight.count);
  const TensorView before =
      gradient_weights.is_none() ? TensorView() : floats_of(gradient_weights, "the gradient's weights", &weight.count);
  const WithoutGil release;
  compute::step(compute::DcStep{.weight = floats(weight),
                                .mean_square = floats(mean_square),
                                .gradient_weight = floats(before),
                                .gradient = gradient_at(gradient),
                                .gradient_dtype = dtype_from_name(dtype),
                                .count = weight.count,
                                .rate = rate,
                                .gradient_scale = gradient_scale,
                                .weight_decay = weight_decay,
                                .lambda_0 = lambda_0,
                                .decay = decay,
                                .epsilon = epsilon});
}

// Size of blocks in elements: steps of HPSGD check the sums of a block while they are in a cache.
constexpr std::size_t step_block = 4096;

float* part(const TensorView& view, std::size_t begin) { return view.data == nullptr ? nullptr : floats(view) + begin; }

const void* part(std::uintptr_t gradient, DType dtype, std::size_t begin) {
  return gradient == 0 ? nullptr : gradient_at(gradient + begin * size_of(dtype));
}

// Returns true if the sums are finite. Ends at the first block with a sum that is not finite, and restores `weights`
// from `before`, if given.
bool replica_step(const py::object& weights, const py::object& before, const py::object& sums, std::uintptr_t gradient,
                  const std::string& dtype, float rate, float gradient_scale, float weight_decay) {
  const TensorView weight = floats_of(weights, "weights");
  const TensorView kept = before.is_none() ? TensorView() : floats_of(before, "kept weights", &weight.count);
  const TensorView sum = floats_of(sums, "sums", &weight.count);
  const DType type = dtype_from_name(dtype);
  const WithoutGil release;
  for (std::size_t begin = 0; begin < weight.count; begin += step_block) {
    const std::size_t count = std::min(step_block, weight.count - begin);
    compute::step(compute::ReplicaStep{.weight = part(weight, begin),
                                       .before = part(kept, begin),
                                       .sum = part(sum, begin),
                                       .gradient = part(gradient, type, begin),
                                       .gradient_dtype = type,
                                       .count = count,
                                       .rate = rate,
                                       .gradient_scale = gradient_scale,
                                       .weight_decay = weight_decay});
    if (compute::count_nonfinite(part(sum, begin), DType::float32, count) > 0) {
      if (!before.is_none()) {
        std::copy_n(floats(kept), begin + count, floats(weight));
      }
      return false;
    }
  }
  return true;
}

// Returns true if the sums are finite, or there is no gradient (address 0).
bool round_step(const py::object& weights, const py::object& before, const py::object& means, float rate,
                const py::object& sums, std::uintptr_t gradient, const std::string& dtype, float gradient_scale,
                float weight_decay) {
  const TensorView weight = floats_of(weights, "weights");
  const TensorView kept = before.is_none() ? TensorView() : floats_of(before, "kept weights", &weight.count);
  const TensorView mean = means.is_none() ? TensorView() : floats_of(means, "means", &weight.count);
  const TensorView sum = floats_of(sums, "sums", &weight.count);
  const DType type = dtype_from_name(dtype);
  const WithoutGil release;
  bool is_finite = true;
  for (std::size_t begin = 0; begin < weight.count; begin += step_block) {
    const std::size_t count = std::min(step_block, weight.count - begin);
    compute::step(compute::RoundStep{.weight = part(weight, begin),
                                     .before = part(kept, begin),
                                     .mean = part(mean, begin),
                                     .sum = part(sum, begin),
                                     .gradient = part(gradient, type, begin),
                                     .gradient_dtype = type,
                                     .count = count,
                                     .rate = rate,
                                     .gradient_scale = gradient_scale,
                                     .weight_decay = weight_decay});
    is_finite = is_finite && (gradient == 0 || compute::count_nonfinite(part(sum, begin), DType::float32, count) == 0);
  }
  return is_finite;
}

// Sets each master weight that does not round to the given weight to the given weight.
void follow(const py::object& master_weights, const py::object& given) {
  const TensorView weights = view_tensor(given, Access::read, "weights");
  const TensorView masters = floats_of(master_weights, "master weights", &weights.count);
  const WithoutGil release;
  constexpr std::size_t block = 4096;
  std::vector<std::byte> rounded(block * sizeof(float));
  std::vector<float> found(block);
  std::vector<float> kept(block);
  for (std::size_t begin = 0; begin < weights.count; begin += block) {
    const std::size_t count = std::min(block, weights.count - begin);
    float* const master = floats(masters) + begin;
    compute::cast(found.data(), DType::float32, weights.data + begin * size_of(weights.dtype), weights.dtype, count,
                  1.0F);
    compute::cast(rounded.data(), weights.dtype, master, DType::float32, count, 1.0F);
    compute::cast(kept.data(), DType::float32, rounded.data(), weights.dtype, count, 1.0F);
    for (std::size_t i = 0; i < count; ++i) {
      if (kept[i] != found[i]) {
        master[i] = found[i];
      }
    }
  }
}

}  // namespace

void bind_local_updates(py::module_& module) {
  py::module_ submodule = module.def_submodule("local_updates", "Steps of a worker on its own weights.");
  submodule.def("sgd_step", &sgd_step, py::arg("weights"), py::arg("gradient"), py::arg("dtype"), py::arg("rate"),
                py::arg("gradient_scale"), py::arg("weight_decay"));
  submodule.def("glu_step", &glu_step, py::arg("weights"), py::arg("pre_weights"), py::arg("gradient"),
                py::arg("dtype"), py::arg("refreshes"), py::arg("rate"), py::arg("gradient_scale"),
                py::arg("weight_decay"), py::arg("alpha"), py::arg("beta"), py::arg("global_scale"));
  submodule.def("dc_step", &dc_step, py::arg("weights"), py::arg("mean_squares"), py::arg("gradient_weights"),
                py::arg("gradient"), py::arg("dtype"), py::arg("rate"), py::arg("gradient_scale"),
                py::arg("weight_decay"), py::arg("lambda_0"), py::arg("decay"), py::arg("epsilon"));
  submodule.def("replica_step", &replica_step, py::arg("weights"), py::arg("before"), py::arg("sums"),
                py::arg("gradient"), py::arg("dtype"), py::arg("rate"), py::arg("gradient_scale"),
                py::arg("weight_decay"));
  submodule.def("round_step", &round_step, py::arg("weights"), py::arg("before"), py::arg("means"), py::arg("rate"),
                py::arg("sums"), py::arg("gradient"), py::arg("dtype"), py::arg("gradient_scale"),
                py::arg("weight_decay"));
  submodule.def("follow", &follow, py::arg("masters"), py::arg("weights"));
  submodule.def(
      "count_nonfinite",
      [](std::uintptr_t address, const std::string& dtype, std::size_t count, const std::string& wire) {
        const WithoutGil release;
        return count_nonfinite(gradient_at(address), dtype_from_name(dtype), count,
                               dtype_from_name(wire.empty() ? dtype : wire));
      },
      py::arg("address"), py::arg("dtype"), py::arg("count"), py::arg("wire") = "",
      "Count of numbers that are not finite; with a wire, after rounding to it.");
}

}  // namespace gradientflow::bindings

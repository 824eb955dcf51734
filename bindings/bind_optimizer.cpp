// gradientflow._core.Optimizer.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../kernels/base/error.hpp"
#include "../kernels/engine/update/optimizer.hpp"
#include "bindings.hpp"
#include "gil.hpp"
#include "stream.hpp"
#include "tensor.hpp"
#include "update.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;
using engine::Optimizer;

// Tuple of beta_1, beta_2, epsilon, decoupled, updates.
using Adam = std::tuple<double, double, double, bool, std::uint64_t>;

// Learning rate, momentum, weight decay, trust, maximize and Adam of each tensor that takes part.
using Settings = std::vector<std::optional<std::tuple<float, float, float, float, bool, std::optional<Adam>>>>;

std::vector<std::optional<Optimizer::Settings>> settings_of(const Settings& settings) {
  std::vector<std::optional<Optimizer::Settings>> found;
  for (const auto& each : settings) {
    if (each) {
      const auto& [rate, momentum, weight_decay, trust, maximize, adam] = *each;
      Optimizer::Settings its{rate, momentum, weight_decay, trust, maximize, {}};
      if (adam) {
        its.adam = std::make_from_tuple<Optimizer::Adam>(*adam);
      }
      found.emplace_back(its);
    } else {
      found.emplace_back();
    }
  }
  return found;
}

// Float32 numbers of an optimizer in memory of a device; keeps the optimizer alive.
struct DeviceFloats {
  std::uintptr_t address;
  std::size_t size;
  int device;
  py::object optimizer;
};

// Optimizer, with the objects that own the memory of the weights.
class OptimizerOwner {
 public:
  OptimizerOwner(const std::vector<std::size_t>& counts, bool rate_inside, std::optional<int> device)
      : engine_(counts, rate_inside, device), owners_(counts.size(), py::none()) {}

  void set_parameter(std::size_t tensor, const py::object& array, bool keep_master) {
    check(tensor);
    TensorView view = view_tensor(array, Access::write, "the tensor of weights");
    if (view.count != engine_.count(tensor)) {
      throw Error(ErrorKind::value, "tensor " + std::to_string(tensor) + " of the weights has " +
                                        std::to_string(view.count) + " elements, and that of the gradients " +
                                        std::to_string(engine_.count(tensor)));
    }
    engine_.set_parameter(tensor, view.data, view.dtype, keep_master, view.placement);
    owners_[tensor] = std::move(view.owner);
  }

  void step(const BoundUpdate& gradients, const Settings& settings, double gradient_scale, Number stream) {
    const auto converted = settings_of(settings);
    const WithoutGil release;
    engine_.step(gradients.update, converted, gradient_scale, stream_of(stream));
  }

  void skip(const BoundUpdate& gradients) { engine_.skip(gradients.update); }

  void order(Number stream) const { engine_.order(stream_of(stream)); }

  engine::FloatArray& momentum(std::size_t tensor) {
    check(tensor);
    return engine_.momentum(tensor);
  }
  engine::FloatArray& mean_square(std::size_t tensor) {
    check(tensor);
    return engine_.mean_square(tensor);
  }
  engine::FloatArray& master(std::size_t tensor) {
    check(tensor);
    return engine_.master(tensor);
  }
  void place(const std::string& numbers, std::size_t tensor, const py::array_t<float, py::array::c_style>& memory) {
    check(tensor);
    auto view = memory;  // another reference
    using Numbers = Optimizer::Numbers;
    const auto kind = numbers == "momentum"      ? Numbers::momentum
                      : numbers == "mean_square" ? Numbers::mean_square
                                                 : Numbers::master;
    engine_.place(kind, tensor, {view.mutable_data(), static_cast<std::size_t>(view.size())});
    places_.push_back(std::move(view));
  }
  void round_master(std::size_t tensor) {
    check(tensor);
    engine_.round_master(tensor);
  }

 private:
  void check(std::size_t tensor) const {
    if (tensor >= engine_.tensors()) {
      throw Error(ErrorKind::value, "there is no tensor " + std::to_string(tensor));
    }
  }

  Optimizer engine_;
  std::vector<py::object> owners_;
  std::vector<py::object> places_;  // owners of numbers that `place` has put elsewhere
};

// Returns gradients of `dtype` at these byte offsets of `memory`, for a step that changes all elements.
BoundUpdate update_over(const py::object& memory, const std::string& dtype, const std::vector<std::size_t>& offsets) {
  const TensorView view = view_tensor(memory, Access::read, "the memory of gradients");
  const DType type = dtype_from_name(dtype);
  const std::size_t elements = view.count * size_of(view.dtype) / size_of(type);
  engine::Update update{.means = engine::new_means(),
                        .data = view.data,
                        .dtype = type,
                        .device = view.placement ? std::optional(view.placement->device) : std::nullopt,
                        .offsets = {},
                        .spans = {{0, elements}}};
  for (const std::size_t offset : offsets) {
    update.offsets.push_back(offset / size_of(type));
  }
  update.offsets.push_back(elements);
  return {std::move(update), memory};
}

// Returns the input of a step that changes only the elements from `begin` to `end` of `whole`. If `of_ranks` has the
// memory of all ranks of a node, the step itself takes the means of their gradients.
BoundUpdate part_of(const BoundUpdate& whole, std::size_t begin, std::size_t end, const py::list& of_ranks) {
  BoundUpdate part{whole.update, py::make_tuple(whole.memory, of_ranks)};
  part.update.limit({begin, end});
  for (const py::handle memory : of_ranks) {
    const TensorView view = view_tensor(memory, Access::read, "the memory of gradients");
    if (view.placement || view.count * size_of(view.dtype) < part.update.offsets.back() * size_of(part.update.dtype)) {
      throw Error(ErrorKind::value, "gradients of several ranks lie in memory of the host, of the same size on each");
    }
    part.update.of_ranks.push_back(view.data);
  }
  return part;
}

// Returns a NumPy array; on a device DeviceFloats. The default stream then sees the values that all earlier steps have
// written.
template <engine::FloatArray& (OptimizerOwner::*member)(std::size_t)>
py::object array_over(const py::object& self, std::size_t tensor) {
  auto& owner = self.cast<OptimizerOwner&>();
  const engine::FloatArray& memory = (owner.*member)(tensor);
  if (memory.device()) {
    owner.order(0);
    return py::cast(
        DeviceFloats{reinterpret_cast<std::uintptr_t>(memory.data()), memory.size(), *memory.device(), self});
  }
  return py::array_t<float>(static_cast<py::ssize_t>(memory.size()), memory.data(), self);
}

}  // namespace

void bind_optimizer(py::module_& module) {
  py::class_<DeviceFloats>(module, "DeviceFloats")
      .def_readonly("address", &DeviceFloats::address)
      .def_readonly("size", &DeviceFloats::size)
      .def_readonly("device", &DeviceFloats::device);
  py::class_<BoundUpdate>(module, "Update")
      .def(py::init(&update_over), py::arg("memory"), py::arg("dtype"), py::arg("offsets"))
      .def("part", &part_of, py::arg("begin"), py::arg("end"), py::arg("of_ranks") = py::list());
  py::class_<OptimizerOwner>(module, "Optimizer")
      .def(py::init<const std::vector<std::size_t>&, bool, std::optional<int>>(), py::arg("counts"),
           py::arg("rate_inside"), py::arg("device") = py::none())
      .def("set_parameter", &OptimizerOwner::set_parameter, py::arg("tensor"), py::arg("array"),
           py::arg("keep_master") = false)
      .def("place", &OptimizerOwner::place, py::arg("numbers"), py::arg("tensor"), py::arg("memory").noconvert())
      .def("step", &OptimizerOwner::step, py::arg("gradients"), py::arg("settings"), py::arg("gradient_scale"),
           py::arg("stream") = 0)
      .def("skip", &OptimizerOwner::skip, py::arg("gradients"))
      .def("order", &OptimizerOwner::order, py::arg("stream"))
      .def("momentum", &array_over<&OptimizerOwner::momentum>, py::arg("tensor"))
      .def("mean_square", &array_over<&OptimizerOwner::mean_square>, py::arg("tensor"))
      .def("round_master", &OptimizerOwner::round_master, py::arg("tensor"))
      .def("master", &array_over<&OptimizerOwner::master>, py::arg("tensor"));
}

}  // namespace gradientflow::bindings

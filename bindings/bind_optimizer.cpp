// gradientflow._core.Optimizer.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../kernels/base/error.hpp"
#include "../kernels/engine/optimizer.hpp"
#include "bindings.hpp"
#include "tensor.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;
using engine::GradientPool;
using engine::Optimizer;
using engine::SparsePool;

// (learning rate, momentum, weight decay, trust) of each tensor that takes part.
using Settings = std::vector<std::optional<std::tuple<float, float, float, float>>>;

std::vector<std::optional<Optimizer::Settings>> settings_of(const Settings& settings) {
  std::vector<std::optional<Optimizer::Settings>> found;
  for (const auto& each : settings) {
    if (each) {
      const auto [rate, momentum, weight_decay, trust] = *each;
      found.emplace_back(Optimizer::Settings{rate, momentum, weight_decay, trust});
    } else {
      found.emplace_back();
    }
  }
  return found;
}

// The optimizer, and the objects in whose memory the weights are.
class Owner {
 public:
  Owner(const std::vector<std::size_t>& counts, bool rate_inside)
      : engine_(counts, rate_inside), owners_(counts.size(), py::none()) {}

  void set_parameter(std::size_t tensor, const py::object& array, bool keep_master) {
    check(tensor);
    TensorView view = view_tensor(array, Access::write, "the tensor of weights");
    if (view.count != engine_.count(tensor)) {
      throw Error(ErrorKind::value, "tensor " + std::to_string(tensor) + " of the weights has " +
                                        std::to_string(view.count) + " elements, and that of the gradients " +
                                        std::to_string(engine_.count(tensor)));
    }
    engine_.set_parameter(tensor, view.data, view.dtype, keep_master);
    owners_[tensor] = std::move(view.owner);
  }

  void step_dense(const GradientPool& pool, const Settings& settings, double gradient_scale) {
    const auto converted = settings_of(settings);
    const py::gil_scoped_release release;
    engine_.step(pool, converted, gradient_scale);
  }

  void step_sparse(const SparsePool& pool, const Settings& settings, double gradient_scale, bool everywhere) {
    const auto converted = settings_of(settings);
    const py::gil_scoped_release release;
    engine_.step(pool, converted, gradient_scale, everywhere);
  }

  engine::FloatArray& momentum(std::size_t tensor) {
    check(tensor);
    return engine_.momentum(tensor);
  }
  engine::FloatArray& master(std::size_t tensor) {
    check(tensor);
    return engine_.master(tensor);
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
};

template <engine::FloatArray& (Owner::*member)(std::size_t)>
py::array_t<float> array_over(const py::object& self, std::size_t tensor) {
  const engine::FloatArray& memory = (self.cast<Owner&>().*member)(tensor);
  return py::array_t<float>(static_cast<py::ssize_t>(memory.size()), memory.data(), self);
}

}  // namespace

void bind_optimizer(py::module_& module) {
  py::class_<Owner>(module, "Optimizer")
      .def(py::init<const std::vector<std::size_t>&, bool>(), py::arg("counts"), py::arg("rate_inside"))
      .def("set_parameter", &Owner::set_parameter, py::arg("tensor"), py::arg("array"), py::arg("keep_master") = false)
      .def("step", &Owner::step_dense, py::arg("pool"), py::arg("settings"), py::arg("gradient_scale"))
      .def("step", &Owner::step_sparse, py::arg("pool"), py::arg("settings"), py::arg("gradient_scale"),
           py::arg("everywhere") = false)
      .def("momentum", &array_over<&Owner::momentum>, py::arg("tensor"))
      .def("round_master", &Owner::round_master, py::arg("tensor"))
      .def("master", &array_over<&Owner::master>, py::arg("tensor"));
}

}  // namespace gradientflow::bindings

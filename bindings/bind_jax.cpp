// gradientflow._core.jax: the functions that gradientflow.jax registers with XLA. Does not need JAX.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../kernels/engine/calls/communicator.hpp"
#include "../kernels/jax/ffi/dense_exchange.hpp"
#include "../kernels/jax/ffi/exchanges.hpp"
#include "../kernels/jax/ffi/handlers.hpp"
#include "../kernels/jax/ffi/slots.hpp"
#include "../kernels/jax/ffi/token.hpp"
#include "argument.hpp"
#include "bindings.hpp"
#include "gil.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;
using engine::Communicator;
using engine::GradientPool;

// Placement of a gradient: the pool, its tensor, a name, and the wire dtype; see jax::DenseExchange::GradientPlacement.
using GradientSlot = std::tuple<std::optional<std::size_t>, std::size_t, std::string, std::optional<std::string>>;

using Addresses = std::vector<std::uintptr_t>;

// Python function that is called and released in any thread, perhaps while the interpreter ends.
class HeldFunction {
 public:
  explicit HeldFunction(py::function function) : function_(std::move(function)) {}
  HeldFunction(const HeldFunction&) = delete;
  HeldFunction& operator=(const HeldFunction&) = delete;
  ~HeldFunction() {
    PyObject* const function = function_.release().ptr();
    if (Py_IsInitialized() != 0) {
      with_gil([&] { Py_DECREF(function); });
    }
  }

  // Calls the function and converts the result while holding the GIL, which an exception of Python needs as long as it
  // lives.
  template <class Result, class... Arguments>
  Result call(const Arguments&... arguments) const {
    return with_gil([&] {
      try {
        return function_(arguments...).template cast<Result>();
      } catch (py::error_already_set& error) {
        const auto name = py::str(error.type().attr("__name__")).cast<std::string>();
        const auto text = py::str(error.value()).cast<std::string>();
        throw std::runtime_error(name + ": " + text);
      }
    });
  }

 private:
  py::function function_;
};

// Exchange made in Python, by a function of the addresses of operands and results. The function returns True if it has
// made the exchange; otherwise a native exchange makes this and all later exchanges, without Python.
class BoundExchange final : public jax::GradientExchange {
 public:
  explicit BoundExchange(py::function work) : work_(std::move(work)) {}

  void run(const jax::Buffers& buffers, bool refused) override {
    if (const auto exchange = native()) {
      exchange->run(buffers, refused);
    } else if (!work_.call<bool>(addresses_of(buffers.operands), addresses_of(buffers.results), refused)) {
      native()->run(buffers, refused);
    }
  }

  void set_native(std::shared_ptr<jax::GradientExchange> native) {
    const std::lock_guard lock(mutex_);
    native_ = std::move(native);
  }

 private:
  std::shared_ptr<jax::GradientExchange> native() const {
    const std::lock_guard lock(mutex_);
    return native_;
  }

  static Addresses addresses_of(const std::vector<jax::Buffer>& buffers) {
    Addresses found;
    found.reserve(buffers.size());
    for (const jax::Buffer& buffer : buffers) {
      found.push_back(reinterpret_cast<std::uintptr_t>(buffer.data));
    }
    return found;
  }

  HeldFunction work_;
  mutable std::mutex mutex_;
  std::shared_ptr<jax::GradientExchange> native_;
};

std::shared_ptr<jax::ExchangeSet> make_exchanges(std::shared_ptr<BoundExchange> first,
                                                 std::shared_ptr<BoundExchange> others, py::function meet) {
  const auto held = std::make_shared<HeldFunction>(std::move(meet));
  return std::make_shared<jax::ExchangeSet>(std::move(first), std::move(others), [held]() -> jax::ExchangeSet::Order {
    auto [communicator, timeout] = held->call<std::tuple<std::shared_ptr<Communicator>, double>>();
    return {std::move(communicator), timeout};
  });
}

// Copies memory between pairs of addresses, with these numbers of bytes.
void copy_memory(const Addresses& from, const Addresses& to, const std::vector<std::size_t>& bytes) {
  const WithoutGil release;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::copy_n(reinterpret_cast<const std::byte*>(from[i]), bytes[i], reinterpret_cast<std::byte*>(to[i]));
  }
}

py::capsule capsule_of(XLA_FFI_Handler* handler) {
  return py::capsule(reinterpret_cast<void*>(handler), "xla._CUSTOM_CALL_TARGET");
}

}  // namespace

void bind_jax(py::module_& module) {
  py::module_ part = module.def_submodule("jax");
  py::class_<BoundExchange, std::shared_ptr<BoundExchange>>(part, "Exchange")
      .def(py::init<py::function>(), py::arg("work"))
      .def(
          "use_dense",
          [](BoundExchange& self, const std::shared_ptr<Communicator>& communicator, const AlgorithmName& algorithm,
             const std::vector<std::shared_ptr<GradientPool>>& pools, const std::vector<GradientSlot>& places) {
            std::vector<jax::DenseExchange::GradientPlacement> found;
            found.reserve(places.size());
            for (const auto& [pool, tensor, name, wire] : places) {
              found.push_back({pool, tensor, name, wire ? std::optional(wire_from_name(*wire)) : std::nullopt});
            }
            self.set_native(std::make_shared<jax::DenseExchange>(
                communicator, transport::algorithm_from_name(algorithm.value), pools, std::move(found)));
          },
          py::arg("communicator"), py::arg("algorithm"), py::arg("pools"), py::arg("places"));
  py::class_<jax::ExchangeSet, std::shared_ptr<jax::ExchangeSet>>(part, "Exchanges")
      .def(py::init(&make_exchanges), py::arg("first"), py::arg("others"), py::arg("meet"))
      .def_property_readonly("number",
                             [](const std::shared_ptr<jax::ExchangeSet>& self) { return jax::number_of(self); });
  part.def(
      "number_of", [](const std::shared_ptr<Communicator>& communicator) { return jax::number_of(communicator); },
      py::arg("communicator"));
  part.def("handlers", [] {
    py::dict found;
    found["gradientflow_allreduce"] = capsule_of(&jax::allreduce);
    found["gradientflow_average"] = capsule_of(&jax::average);
    return found;
  });
  part.def("copy", &copy_memory, py::arg("source"), py::arg("target"), py::arg("bytes"));
  part.def("end_calls", &jax::end_calls, py::call_guard<WithoutGil>());
  part.def("marks_needed", &jax::marks_needed);
  part.def(
      "write_marks",
      [](std::uint32_t count, bool refused, py::array_t<double>& marks) {
        jax::write_marks(count, refused, {marks.mutable_data(), static_cast<std::size_t>(marks.size())});
      },
      py::arg("count"), py::arg("refused"), py::arg("marks"));
  part.def(
      "check_marks",
      [](std::uint32_t count, const py::array_t<double>& means) {
        jax::check_marks(count, {means.data(), static_cast<std::size_t>(means.size())});
      },
      py::arg("count"), py::arg("means"));
}

}  // namespace gradientflow::bindings

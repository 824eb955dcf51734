// gradientflow._core.ParameterServer. See gradientflow/server/parameter_server.py.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "../kernels/engine/server/parameter_server.hpp"
#include "argument.hpp"
#include "bindings.hpp"
#include "gil.hpp"
#include "policy.hpp"
#include "residual_pool.hpp"
#include "tensor.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;
using engine::Communicator;
using engine::ParameterServer;
using engine::ServerSettings;
using SettingsArray = py::array_t<float, py::array::c_style | py::array::forcecast>;

// Names in the order of engine::Skip.
constexpr std::array<std::string_view, 3> skips = {"applied", "skipped", "abandoned"};

// Returns a function that calls `start(workers)` of a gradientflow.policies.Policy.
engine::Server::MakePolicy maker_of(const py::object& start, int workers) {
  const std::shared_ptr<PyObject> held(start.inc_ref().ptr(), [](PyObject* object) {
    if (Py_IsInitialized() != 0) {
      with_gil([&] { Py_DECREF(object); });
    }
  });
  return [held, workers] {
    return with_gil([&]() -> std::shared_ptr<policy::Policy> {
      try {
        return policy_of(py::handle(held.get())(workers), workers);
      } catch (const py::error_already_set& error) {
        throw Error(ErrorKind::value, std::string("the policy cannot be started: ") + error.what());
      }
    });
  };
}

std::shared_ptr<ParameterServer> make(Communicator& everybody, const std::vector<std::size_t>& counts,
                                      std::optional<int> workers, std::optional<std::size_t> servers,
                                      std::optional<std::size_t> fusion_threshold, const WireName& wire,
                                      const std::vector<std::string>& names,
                                      const std::vector<std::vector<std::size_t>>& shapes, const std::string& policy,
                                      const py::object& start, int replicas, const std::string& optimizer,
                                      bool rate_in_momentum, double beta1, double beta2, double eps) {
  const ParameterServer::Options options{.workers = workers,
                                         .servers = servers,
                                         .fusion_threshold = fusion_threshold,
                                         .wire = given_wire(wire).value_or(Wire::float32),
                                         .names = names,
                                         .shapes = shapes,
                                         .optimizer = {optimizer, rate_in_momentum, beta1, beta2, eps},
                                         .policy = policy,
                                         .replicas = replicas,
                                         .poll_signals = &poll_signals};
  const auto make_policy = maker_of(start, workers.value_or(everybody.size()));
  const WithoutGil release;
  return {new ParameterServer(everybody, counts, options, make_policy), [](ParameterServer* server) {
            std::optional<WithoutGil> released;  // its thread may wait for the GIL to ask a policy
            if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
              released.emplace();
            }
            delete server;
          }};
}

void* pointer(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): an address from Python
}

void check_tensor(const ParameterServer& server, std::size_t tensor, const TensorView& view, const char* name) {
  if (view.placement) {
    throw Error(ErrorKind::type, std::string(name) + " is in memory of the host, not on a CUDA device");
  }
  if (tensor < server.layout().tensors() && view.count != server.layout().counts()[tensor]) {
    throw Error(ErrorKind::value, std::string(name) + " " + std::to_string(tensor) + " has " +
                                      std::to_string(view.count) + " elements, and the tensor " +
                                      std::to_string(server.layout().counts()[tensor]));
  }
}

// Returns the numbers of the push and of the pull, 0 without a pull. `gradients`: one or None for each tensor; or
// empty.
std::pair<std::uint64_t, std::uint64_t> push(const ParameterServer& server, const SettingsArray& settings,
                                             float loss_scale, const std::string& skip, std::optional<bool> pull,
                                             const std::vector<py::object>& gradients, std::int64_t nonfinite) {
  if (settings.ndim() != 2 || settings.shape(1) != 4) {
    throw Error(ErrorKind::value, "settings are rows of rate, momentum, weight_decay and trust");
  }
  const auto why = std::find(skips.begin(), skips.end(), skip) - skips.begin();
  std::vector<ServerSettings> rows;
  for (py::ssize_t i = 0; i < settings.shape(0); ++i) {
    const float* const row = settings.data(i, 0);
    rows.push_back({row[0], row[1], row[2], row[3]});
  }
  std::vector<TensorView> views;
  std::vector<std::optional<engine::ServerWorker::Gradient>> given;
  for (const py::object& gradient : gradients) {
    if (gradient.is_none()) {
      given.emplace_back();
      continue;
    }
    views.push_back(view_tensor(gradient, Access::read, "gradient"));
    check_tensor(server, given.size(), views.back(), "gradient");
    given.emplace_back(engine::ServerWorker::Gradient{views.back().data, views.back().dtype});
  }
  using WithPull = engine::ServerWorker::WithPull;
  const WithPull with_pull = !pull ? WithPull::no : *pull ? WithPull::exact : WithPull::rounded;
  const WithoutGil release;
  const auto pushed =
      server.worker().push(rows, loss_scale, static_cast<engine::Skip>(why), with_pull, given, nonfinite);
  return {pushed.push, pushed.pull};
}

// Returns an array over node memory of a parameter server. The array keeps the server alive.
py::array array_in(const ParameterServer& server, const std::byte* data, const py::dtype& dtype, const py::tuple& shape,
                   bool is_writable) {
  using Owner = std::shared_ptr<const void>;
  const py::capsule owner(new Owner(server.memory()), [](void* held) { delete static_cast<Owner*>(held); });
  py::array array(dtype, py::cast<std::vector<py::ssize_t>>(shape), data, owner);
  if (!is_writable) {
    array.attr("setflags")(py::arg("write") = false);  // cannot be undone: the base, a capsule, has no writable buffer
  }
  return array;
}

py::typing::List<py::array> gradients(const ParameterServer& server, const Timeout& timeout, const py::dtype& dtype,
                                      const py::tuple& shapes) {
  std::vector<std::byte*> places(shapes.size());
  {
    const WithoutGil release;
    for (std::size_t i = 0; i < places.size(); ++i) {
      places[i] = server.worker().gradient(i, timeout.value);
    }
  }
  py::typing::List<py::array> arrays;
  for (std::size_t i = 0; i < places.size(); ++i) {
    arrays.append(array_in(server, places[i], dtype, shapes[i], true));
  }
  return arrays;
}

py::array weights(const ParameterServer& server, std::uint64_t number, std::size_t tensor, const Timeout& timeout,
                  const py::dtype& dtype, const py::tuple& shape) {
  const auto found = [&] {
    const WithoutGil release;
    return server.worker().weights(number, tensor, timeout.value);
  }();
  return array_in(server, found.data, dtype, shape, false);
}

// Returns the start of each tensor in `flat`, their concatenation.
std::vector<float*> pointers_into(const ParameterServer& server, float* flat) {
  std::vector<float*> pointers;
  for (const std::size_t count : server.layout().counts()) {
    pointers.push_back(flat);
    flat += count;
  }
  return pointers;
}

std::size_t elements(const ParameterServer& server) {
  std::size_t sum = 0;
  for (const std::size_t count : server.layout().counts()) {
    sum += count;
  }
  return sum;
}

void load(const ParameterServer& server, std::size_t array, const Floats& values) {
  if (static_cast<std::size_t>(values.size()) != elements(server)) {
    throw Error(ErrorKind::value, "the state has another number of elements");
  }
  const auto pointers = pointers_into(server, const_cast<float*>(values.data()));  // NOLINT(*-const-cast): only read
  const std::vector<const float*> sources(pointers.begin(), pointers.end());
  const WithoutGil release;
  server.worker().load(array, sources);
}

Floats save(const ParameterServer& server, std::size_t array, const Timeout& timeout) {
  Floats values(static_cast<py::ssize_t>(elements(server)));
  const auto pointers = pointers_into(server, values.mutable_data());
  const WithoutGil release;
  server.worker().save(array, pointers, timeout.value);
  return values;
}

// Writes a copy's elements to `values`, the concatenation of the tensors.
void read_copy(const ParameterServer& server, std::size_t number, std::uint64_t round, std::size_t array,
               Floats& values) {
  if (static_cast<std::size_t>(values.size()) != elements(server)) {
    throw Error(ErrorKind::value, "the array has another number of elements");
  }
  const auto pointers = pointers_into(server, values.mutable_data());
  const WithoutGil release;
  server.read_copy(number, round, array, pointers);
}

}  // namespace

void bind_server(py::module_& module) {
  py::class_<ParameterServer, std::shared_ptr<ParameterServer>>(module, "ParameterServer")
      .def(py::init(&make), py::arg("everybody"), py::arg("counts"), py::arg("workers"), py::arg("servers"),
           py::arg("fusion_threshold"), py::arg("wire"), py::arg("names"), py::arg("shapes"), py::arg("policy"),
           py::arg("start"), py::arg("replicas"), py::arg("optimizer"), py::arg("rate_in_momentum") = false,
           py::arg("beta1") = 0.9, py::arg("beta2") = 0.999, py::arg("eps") = 1e-8)
      .def_property_readonly("servers", [](const ParameterServer& self) { return self.layout().servers(); })
      .def_property_readonly("workers", &ParameterServer::workers)
      .def_property_readonly("wire", [](const ParameterServer& self) { return std::string(name_of(self.wire())); })
      .def_property_readonly("closed", &ParameterServer::closed)
      .def_property_readonly("ready_count", [](const ParameterServer& self) { return self.worker().ready_count(); })
      .def_property_readonly("pushes", [](const ParameterServer& self) { return self.worker().pushes(); })
      .def(
          "ready",
          [](const ParameterServer& self, std::size_t tensor, const py::object& gradient) {
            const TensorView view = view_tensor(gradient, Access::read, "gradient");
            check_tensor(self, tensor, view, "gradient");
            const WithoutGil release;
            self.worker().ready(tensor, view.data, view.dtype);
          },
          py::arg("tensor"), py::arg("gradient"))
      .def(
          "ready_at",
          [](const ParameterServer& self, std::size_t tensor, std::uintptr_t address, const std::string& dtype) {
            std::size_t nonfinite = 0;
            self.worker().ready(tensor, pointer(address), dtype_from_name(dtype), &nonfinite);
            return nonfinite;
          },
          py::arg("tensor"), py::arg("address"), py::arg("dtype"), py::call_guard<WithoutGil>(),
          "Count of its numbers that are not finite, as rounded for messages.")
      .def("push", &push, py::arg("settings"), py::arg("loss_scale"), py::arg("skip"), py::arg("pull"),
           py::arg("gradients"), py::arg("nonfinite") = -1)
      .def(
          "wait_for_push",
          [](const ParameterServer& self, std::uint64_t number, const Timeout& timeout) {
            const engine::SkippedPush found = self.worker().wait_for_push(number, timeout.value);
            return std::tuple(skips[found.skip], found.rank, found.tensor);
          },
          py::arg("number"), py::arg("timeout"), py::call_guard<WithoutGil>())
      .def(
          "is_released",
          [](const ParameterServer& self, std::uint64_t number) { return self.worker().is_released(number); },
          py::arg("number"), py::call_guard<WithoutGil>())
      .def(
          "pull", [](const ParameterServer& self, bool exact) { return self.worker().pull(exact); }, py::arg("exact"),
          py::call_guard<WithoutGil>())
      .def(
          "wait_for_pull",
          [](const ParameterServer& self, std::uint64_t number, const Timeout& timeout) {
            self.worker().wait_for_pull(number, timeout.value);
          },
          py::arg("number"), py::arg("timeout"), py::call_guard<WithoutGil>())
      .def(
          "has_come", [](const ParameterServer& self, std::uint64_t number) { return self.worker().has_come(number); },
          py::arg("number"), py::call_guard<WithoutGil>())
      .def(
          "take",
          [](const ParameterServer& self, std::uint64_t number, std::size_t tensor, const py::object& weights,
             const Timeout& timeout) {
            const TensorView view = view_tensor(weights, Access::write, "weights");
            check_tensor(self, tensor, view, "weights");
            if (view.dtype != DType::float32) {
              throw Error(ErrorKind::type, "weights are float32, not " + std::string(name_of(view.dtype)));
            }
            const WithoutGil release;
            self.worker().take(number, tensor, reinterpret_cast<float*>(view.data), timeout.value);
          },
          py::arg("number"), py::arg("tensor"), py::arg("weights"), py::arg("timeout"))
      .def(
          "take_to",
          [](const ParameterServer& self, std::uint64_t number, std::size_t tensor, std::uintptr_t address,
             const Timeout& timeout) {
            self.worker().take(number, tensor, static_cast<float*>(pointer(address)), timeout.value);
          },
          py::arg("number"), py::arg("tensor"), py::arg("address"), py::arg("timeout"), py::call_guard<WithoutGil>())
      .def("gradients", &gradients, py::arg("timeout"), py::arg("dtype"), py::arg("shapes"))
      .def("weights", &weights, py::arg("number"), py::arg("tensor"), py::arg("timeout"), py::arg("dtype"),
           py::arg("shape"))
      .def(
          "finish",
          [](const ParameterServer& self, const Timeout& timeout) { return self.worker().finish(timeout.value); },
          py::arg("timeout"), py::call_guard<WithoutGil>())
      .def("load", &load, py::arg("array"), py::arg("values"))
      .def("save", &save, py::arg("array"), py::arg("timeout"))
      .def(
          "statistics",
          [](const ParameterServer& self, const Timeout& timeout) {
            return self.worker().ask(engine::ServerWorker::Query::statistics, timeout.value);
          },
          py::arg("timeout"), py::call_guard<WithoutGil>())
      .def(
          "trace",
          [](const ParameterServer& self, const Timeout& timeout) {
            return self.worker().ask(engine::ServerWorker::Query::trace, timeout.value);
          },
          py::arg("timeout"), py::call_guard<WithoutGil>())
      .def("make_recoverable", &ParameterServer::make_recoverable, py::arg("rounds"), py::call_guard<WithoutGil>())
      .def(
          "holdings",
          [](const ParameterServer& self) {
            std::vector<std::tuple<std::size_t, std::uint64_t, std::uint64_t>> found;
            for (const auto& each : self.holdings()) {
              found.emplace_back(each.server, each.first, each.last);
            }
            return found;
          },
          py::call_guard<WithoutGil>(),
          "Of which servers this rank has copies, once it is closed: first and last round.")
      .def("read_copy", &read_copy, py::arg("server"), py::arg("round"), py::arg("array"),
           py::arg("values").noconvert())
      .def("serve", &ParameterServer::serve, py::call_guard<WithoutGil>())
      .def("close", &ParameterServer::close, py::arg("orderly"), py::call_guard<WithoutGil>());
}

}  // namespace gradientflow::bindings

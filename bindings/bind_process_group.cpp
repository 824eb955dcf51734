// gradientflow._core.PlainCalls: the usual calls of PyTorch's process group, in C++ from its methods to the core. Usual
// calls wait, have no timeout of their own, and are on tensors of the host whose memory the core uses without a copy.
// All remaining calls are left to the methods.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "../kernels/base/dtype.hpp"
#include "../kernels/base/error.hpp"
#include "../kernels/engine/calls/communicator.hpp"
#include "../kernels/engine/calls/request.hpp"
#include "bindings.hpp"
#include "bound_call.hpp"
#include "fast_path.hpp"
#include "tensor.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;
using transport::CallKind;

thread_local bool runs_callbacks = false;  // thread of callbacks, whose calls have another communicator

struct PlainCalls {
  std::shared_ptr<engine::Communicator> communicator;
  std::map<int, ReduceOp> ops;  // reductions by PyTorch's numbers
  py::object context;           // context of the works
  py::object work;              // type of works that have ended
  py::object is_profiled;
  std::uint64_t count = 0;
  bool are_limited = false;  // true if the group has a limit that differs from the communicator's
};

struct Names {
  PyObject* waits = PyUnicode_InternFromString("asyncOp");
  PyObject* timeout = PyUnicode_InternFromString("timeout");
  PyObject* days = PyUnicode_InternFromString("days");
  PyObject* reduce_op = PyUnicode_InternFromString("reduceOp");
  PyObject* op = PyUnicode_InternFromString("op");
  PyObject* value = PyUnicode_InternFromString("value");
  PyObject* context = PyUnicode_InternFromString("_context");
  PyObject* outputs = PyUnicode_InternFromString("_outputs");
};

const Names& names() {
  static const Names all;
  return all;
}

// Returns the whole number at a path of attributes of the object; nothing if there is none.
std::optional<long> number_at(PyObject* object, std::initializer_list<PyObject*> path) {
  auto found = py::reinterpret_borrow<py::object>(object);
  for (PyObject* const name : path) {
    found = py::reinterpret_steal<py::object>(PyObject_GetAttr(found.ptr(), name));
    if (!found) {
      PyErr_Clear();
      return std::nullopt;
    }
  }
  return PyLong_Check(found.ptr()) != 0 ? std::optional(PyLong_AsLong(found.ptr())) : std::nullopt;
}

// True if PlainCalls serves the call. An unset timeout is negative.
bool are_usual(const PlainCalls& calls, PyObject* options, PyObject* timeout) {
  return !runs_callbacks && !calls.are_limited && options != nullptr && is_none(timeout) &&
         number_at(options, {names().waits}) == 0 &&
         number_at(options, {names().timeout, names().days}).value_or(0) < 0 && calls.is_profiled().ptr() == Py_False;
}

// Returns the reduction in the options, if the core supports it for this dtype without conversion.
std::optional<ReduceOp> op_in(const PlainCalls& calls, PyObject* options, DType dtype) {
  const auto number = number_at(options, {names().reduce_op, names().op, names().value});
  const auto found = number ? calls.ops.find(static_cast<int>(*number)) : calls.ops.end();
  if (found == calls.ops.end() || dtype == DType::boolean || (found->second == ReduceOp::mean && !is_floating(dtype))) {
    return std::nullopt;
  }
  return found->second;
}

bool overlap(const TensorView& a, const TensorView& b) {
  return a.data < b.data + b.count * size_of(b.dtype) && b.data < a.data + a.count * size_of(a.dtype);
}

// Returns the work of a call that has ended. An error is raised in the words of the group.
py::object make(PlainCalls& calls, const engine::Request& request, TensorView input, TensorView output,
                PyObject* result) {
  ++calls.count;
  try {
    run(*calls.communicator, {make_call(*calls.communicator, request), std::move(input), std::move(output)});
  } catch (const Error& error) {
    raise(error);
    const py::error_already_set raised;
    calls.context.attr("raise_explained")(raised.value());
    throw raised;
  }
  py::list results(1);
  results[0] = py::reinterpret_borrow<py::object>(result);
  py::object work = calls.work();
  py::setattr(work, names().context, calls.context);
  py::setattr(work, names().outputs, results);
  return work;
}

py::object allreduce(PlainCalls& calls, Given given, py::handle /*self*/) {
  if (given[0] == nullptr || PyList_CheckExact(given[0]) == 0 || PyList_GET_SIZE(given[0]) != 1) {
    return {};
  }
  // The tensor is held from here on: other threads may change the list.
  const auto tensor = py::reinterpret_borrow<py::object>(PyList_GET_ITEM(given[0], 0));
  auto view = are_usual(calls, given[1], given[2]) ? view_if_simple(tensor) : std::nullopt;
  const auto op = view ? op_in(calls, given[1], view->dtype) : std::nullopt;
  if (!op) {
    return {};
  }
  const engine::Request request{
      .kind = CallKind::allreduce, .op = *op, .input = view->array(), .output = view->array()};
  return make(calls, request, std::move(*view), {}, tensor.ptr());
}

// Tensor with one block for each rank, and a single block.
struct Blocks {
  TensorView whole;
  TensorView block;
};

// Returns the two tensors as Blocks; nothing if they are not simple tensors that fit together, or if they share memory.
std::optional<Blocks> blocks_in(const PlainCalls& calls, PyObject* whole, PyObject* block) {
  auto all = whole != nullptr ? view_if_simple(whole) : std::nullopt;
  auto one = block != nullptr ? view_if_simple(block) : std::nullopt;
  if (!all || !one || all->dtype != one->dtype || overlap(*all, *one) ||
      all->count != one->count * static_cast<std::size_t>(calls.communicator->size())) {
    return std::nullopt;
  }
  return Blocks{std::move(*all), std::move(*one)};
}

py::object all_gather_single(PlainCalls& calls, Given given, py::handle /*self*/) {
  auto tensors = are_usual(calls, given[2], given[3]) ? blocks_in(calls, given[0], given[1]) : std::nullopt;
  if (!tensors) {
    return {};
  }
  const engine::Request request{
      .kind = CallKind::allgather, .input = tensors->block.array(), .output = tensors->whole.array()};
  return make(calls, request, std::move(tensors->block), std::move(tensors->whole), given[0]);
}

py::object reduce_scatter_single(PlainCalls& calls, Given given, py::handle /*self*/) {
  auto tensors = are_usual(calls, given[2], given[3]) ? blocks_in(calls, given[1], given[0]) : std::nullopt;
  const auto op = tensors ? op_in(calls, given[2], tensors->whole.dtype) : std::nullopt;
  if (!tensors || !op) {
    return {};
  }
  const engine::Request request{
      .kind = CallKind::reduce_scatter, .op = *op, .input = tensors->whole.array(), .output = tensors->block.array()};
  return make(calls, request, std::move(tensors->whole), std::move(tensors->block), given[0]);
}

}  // namespace

void bind_process_group(py::module_& module) {
  py::class_<PlainCalls> calls(module, "PlainCalls");
  calls
      .def(py::init([](std::shared_ptr<engine::Communicator> communicator, const std::map<int, std::string>& ops,
                       py::object context, py::object work, py::object is_profiled) {
             std::map<int, ReduceOp> known;
             for (const auto& [number, name] : ops) {
               known[number] = reduce_op_from_name(name);
             }
             return PlainCalls{std::move(communicator), std::move(known), std::move(context), std::move(work),
                               std::move(is_profiled)};
           }),
           py::arg("communicator"), py::arg("ops"), py::arg("context"), py::arg("work"), py::arg("is_profiled"))
      .def_readonly("count", &PlainCalls::count, "Number of calls so far.")
      .def_readwrite("are_limited", &PlainCalls::are_limited);
  def_fast_path<&allreduce>(calls, "allreduce", {"tensors", "opts", "timeout"});
  def_fast_path<&all_gather_single>(calls, "all_gather_single", {"output", "input", "opts", "timeout"});
  def_fast_path<&reduce_scatter_single>(calls, "reduce_scatter_single", {"output", "input", "opts", "timeout"});
  module.def("begin_callbacks", [] { runs_callbacks = true; }, "Leave all calls of this thread to the methods.");
}

}  // namespace gradientflow::bindings

// gradientflow._core.Communicator, Handle and Segment.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "../kernels/collective/partition.hpp"
#include "../kernels/engine/communicator.hpp"
#include "bindings.hpp"
#include "tensor.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;
using collective::Call;
using engine::Communicator;
using engine::Handle;
using transport::CallKind;
using transport::Segment;
using transport::Signature;

// A call, and what keeps its tensors alive.
struct BoundCall {
  Call call;
  TensorView input;
  TensorView output;
};

void check_output(const TensorView& output, const TensorView& input, std::size_t count, const char* name) {
  if (output.dtype != input.dtype) {
    throw Error(ErrorKind::type, std::string(name) + " has dtype " + std::string(name_of(output.dtype)) +
                                     ", but the input has " + std::string(name_of(input.dtype)));
  }
  if (output.count != count) {
    throw Error(ErrorKind::value, std::string(name) + " has " + std::to_string(output.count) +
                                      " elements, but the result has " + std::to_string(count));
  }
}

bool overlap(const TensorView& a, const TensorView& b) {
  const std::size_t a_bytes = a.count * size_of(a.dtype);
  const std::size_t b_bytes = b.count * size_of(b.dtype);
  return a.data < b.data + b_bytes && b.data < a.data + a_bytes;
}

std::size_t result_count(const Communicator& communicator, const Signature& signature) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  if (signature.kind == CallKind::allgather) {
    return signature.count * ranks;
  }
  if (signature.kind == CallKind::reduce_scatter) {
    return collective::block(signature.count, ranks, static_cast<std::size_t>(communicator.rank())).size();
  }
  return signature.count;
}

// `out` is None for calls in place.
BoundCall bind_call(const Communicator& communicator, Signature signature, py::handle x, py::handle out) {
  const bool in_place = out.is_none();
  const bool is_root = signature.root == communicator.rank();
  const bool has_result = signature.kind != CallKind::reduce || is_root;
  const bool only_sends = signature.kind == CallKind::broadcast && is_root;
  BoundCall bound;
  bound.input = view_tensor(x, in_place && has_result && !only_sends ? Access::write : Access::read, "the tensor");
  signature.count = bound.input.count;
  signature.dtype = bound.input.dtype;
  bound.call = {signature, bound.input.data, in_place && has_result ? bound.input.data : nullptr};
  if (!in_place) {
    bound.output = view_tensor(out, Access::write, "out");
    check_output(bound.output, bound.input, result_count(communicator, signature), "out");
    if (bound.output.data != bound.input.data && overlap(bound.input, bound.output)) {
      throw Error(ErrorKind::value, "out overlaps the tensor, without being the same memory");
    }
    const bool may_alias = signature.kind == CallKind::allreduce || signature.kind == CallKind::reduce;
    if (!may_alias && bound.input.count > 0 && bound.output.count > 0 && bound.output.data == bound.input.data) {
      throw Error(ErrorKind::value, "out must not be the tensor itself in " + std::string(name_of(signature.kind)));
    }
    bound.call.output = bound.output.data;
  }
  return bound;
}

// A blocking call ends before it returns; an asynchronous one hands back the handle and what must stay alive with it.
void run(Communicator& communicator, const Signature& signature, py::handle x, py::handle out) {
  BoundCall bound = bind_call(communicator, signature, x, out);
  try {
    const py::gil_scoped_release release;
    communicator.run(bound.call);
  } catch (...) {
    if (communicator.group().stuck()) {  // MPI may still write to the tensors: they must live for ever
      bound.input.owner.release();
      bound.output.owner.release();
    }
    throw;
  }
}

py::tuple submit(Communicator& communicator, const Signature& signature, py::handle x, py::handle out) {
  const BoundCall bound = bind_call(communicator, signature, x, out);
  return py::make_tuple(communicator.submit(bound.call), bound.input.owner, bound.output.owner);
}

Signature make_signature(CallKind kind, const std::string& op, int root, const std::string& algorithm) {
  return {.root = root,
          .kind = kind,
          .op = reduce_op_from_name(op),
          .algorithm = transport::algorithm_from_name(algorithm)};
}

// Defines `name` and `name_async`.
void def_collective(py::class_<Communicator, std::shared_ptr<Communicator>>& cls, const std::string& name,
                    CallKind kind) {
  const auto op = py::arg("op");
  const auto root = py::arg("root");
  const auto algorithm = py::arg("algorithm");
  cls.def(
      name.c_str(),
      [kind](Communicator& communicator, py::handle x, const std::string& op_name, int root_rank,
             const std::string& algorithm_name,
             py::handle out) { run(communicator, make_signature(kind, op_name, root_rank, algorithm_name), x, out); },
      py::arg("x"), op, root, algorithm, py::arg("out"));
  cls.def((name + "_async").c_str(),
          [kind](Communicator& communicator, py::handle x, const std::string& op_name, int root_rank,
                 const std::string& algorithm_name, py::handle out) {
            return submit(communicator, make_signature(kind, op_name, root_rank, algorithm_name), x, out);
          },
          py::arg("x"), op, root, algorithm, py::arg("out"));
}

py::dict describe(const Communicator& communicator) {
  const collective::Group& group = communicator.group();
  py::dict facts;
  facts["rank"] = communicator.rank();
  facts["size"] = communicator.size();
  facts["local_rank"] = communicator.local_rank();
  facts["local_size"] = communicator.local_size();
  facts["node"] = communicator.node();
  facts["nodes"] = group.topology().members;
  facts["nodes_remark"] = group.topology().remark;
  facts["inside_a_node"] = communicator.nodes() == 1 ? "ours, in node memory" : "as across nodes";
  facts["across_nodes"] = "the MPI library's own collectives";
  facts["direct_read"] = group.direct_read_remark().empty() ? "available" : group.direct_read_remark();
  facts["simd"] = name_of(compute::active_simd());
  facts["mpi_library"] = transport::mpi_library_version();
  facts["staging_bytes_per_rank"] = 2 * group.node().staging_bytes();
  py::dict settings;
  for (const ConfigField& field : config_fields()) {
    settings[py::str(std::string(field.name))] = get_field(group.config(), field.name);
  }
  facts["settings"] = settings;
  return facts;
}

}  // namespace

void bind_communicator(py::module_& module) {
  py::class_<Handle, std::shared_ptr<Handle>>(module, "Handle")
      .def_property_readonly("done", &Handle::done)
      .def("wait", &Handle::wait, py::arg("timeout"), py::call_guard<py::gil_scoped_release>());

  py::class_<Segment, std::shared_ptr<Segment>>(module, "Segment", py::buffer_protocol())
      .def_buffer([](const Segment& segment) {
        return py::buffer_info(reinterpret_cast<std::uint8_t*>(segment.mine()),
                               static_cast<py::ssize_t>(segment.stride()), false);
      });

  py::class_<Communicator, std::shared_ptr<Communicator>> communicator(module, "Communicator");
  communicator
      .def(py::init([](std::uintptr_t mpi_comm_address, const std::map<std::string, std::string>& overrides) {
             const Config config = read_config(overrides);
             const MPI_Comm comm = *reinterpret_cast<MPI_Comm*>(mpi_comm_address);  // NOLINT: from mpi4py
             const py::gil_scoped_release release;
             return Communicator::make(comm, config);
           }),
           py::arg("mpi_comm_address"), py::arg("overrides"))
      .def_property_readonly("rank", &Communicator::rank)
      .def_property_readonly("size", &Communicator::size)
      .def_property_readonly("local_rank", &Communicator::local_rank)
      .def_property_readonly("local_size", &Communicator::local_size)
      .def_property_readonly("node", &Communicator::node)
      .def_property_readonly("nodes", &Communicator::nodes)
      .def_property_readonly("closed", &Communicator::closed)
      .def_property_readonly("stuck", [](const Communicator& self) { return self.group().stuck(); })
      .def("allocate", &Communicator::allocate, py::arg("bytes"), py::call_guard<py::gil_scoped_release>())
      .def("close", &Communicator::close, py::arg("drain"), py::call_guard<py::gil_scoped_release>())
      .def("describe", &describe)
      .def("barrier",
           [](Communicator& self) {
             const py::gil_scoped_release release;
             self.run({{.kind = CallKind::barrier}, nullptr, nullptr});
           })
      .def("barrier_async", [](Communicator& self) {
        return py::make_tuple(self.submit({{.kind = CallKind::barrier}, nullptr, nullptr}), py::none(), py::none());
      });
  def_collective(communicator, "allreduce", CallKind::allreduce);
  def_collective(communicator, "broadcast", CallKind::broadcast);
  def_collective(communicator, "reduce", CallKind::reduce);
  def_collective(communicator, "allgather", CallKind::allgather);
  def_collective(communicator, "reduce_scatter", CallKind::reduce_scatter);
}

}  // namespace gradientflow::bindings

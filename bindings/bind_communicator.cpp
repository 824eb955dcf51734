// gradientflow._core.Communicator, Handle and Segment.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "../kernels/collective/call/call.hpp"
#include "../kernels/engine/calls/communicator.hpp"
#include "../kernels/transport/mpi/launcher.hpp"
#include "argument.hpp"
#include "bindings.hpp"
#include "gil.hpp"
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
using Root = Rank<"root">;
using Color = Argument<"color", "a number of 0 or more, at most 2147483647, or None", std::optional<int>>;
using Key = Argument<"key", "a number from -2147483648 to 2147483647, or None", std::optional<int>>;
using Counts = Argument<"counts", "a sequence of whole numbers", std::vector<std::size_t>>;

// A call, and what keeps its tensors alive.
struct BoundCall {
  Call call;
  TensorView input;
  TensorView output;
  bool streams_are_known = true;  // of tensors on a device
};

std::string place_of(const TensorView& tensor) {
  return tensor.placement ? "on CUDA device " + std::to_string(tensor.placement->device) : "in memory of the host";
}

void synchronize(const collective::Placement& placement) {
  const WithoutGil release;
  const compute::cuda::UseDevice use(placement.device);
  compute::cuda::runtime().synchronize(placement.stream);
}

// Where the call is made. Tensors in two streams are brought together by the host, which is rare.
void place(BoundCall& bound, bool has_input, bool has_output) {
  const TensorView& known = has_input ? bound.input : bound.output;
  bound.call.placement = known.placement;
  bound.call.signature.memory = known.placement ? transport::Memory::device : transport::Memory::host;
  bound.streams_are_known = known.stream_is_known;
  if (!has_input || !has_output) {
    return;
  }
  const auto& input = bound.input.placement;
  const auto& output = bound.output.placement;
  if (input.has_value() != output.has_value() || (input && input->device != output->device)) {
    throw Error(ErrorKind::value, "out is " + place_of(bound.output) + ", but the tensor is " + place_of(bound.input));
  }
  if (input && input->stream != output->stream) {
    synchronize(*output);
    bound.streams_are_known = false;
  }
}

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

// What the caller says about a call, beside the tensors.
struct Options {
  std::string_view op;
  int root;
  std::string_view algorithm;
  const std::optional<std::string_view>& wire;  // nothing: the tensor's own dtype
  const std::vector<std::size_t>& counts;
};

// Elements of a tensor that has one block for each rank.
std::size_t block_count(const TensorView& tensor, int ranks, CallKind kind) {
  const auto number = static_cast<std::size_t>(ranks);
  if (tensor.count % number != 0) {
    throw Error(ErrorKind::value, std::string(name_of(kind)) + " needs a tensor of one block for each of the " +
                                      std::to_string(ranks) + " ranks, but " + std::to_string(tensor.count) +
                                      " elements do not divide by " + std::to_string(ranks));
  }
  return tensor.count / number;
}

void check_own_count(const Communicator& communicator, const std::vector<std::size_t>& counts, std::size_t own) {
  const auto rank = static_cast<std::size_t>(communicator.rank());
  if (counts.size() == static_cast<std::size_t>(communicator.size()) && counts[rank] != own) {
    throw Error(ErrorKind::value, "counts say " + std::to_string(counts[rank]) + " elements for rank " +
                                      std::to_string(rank) + ", but its tensor has " + std::to_string(own));
  }
}

bool works_in_place(CallKind kind) {
  return kind == CallKind::allreduce || kind == CallKind::broadcast || kind == CallKind::reduce;
}

// `out` is None for calls in place and where a rank gets no result, `x` where a rank puts nothing in.
BoundCall bind_call(const Communicator& communicator, CallKind kind, const Options& options, py::handle x,
                    py::handle out) {
  const int ranks = communicator.size();
  const bool is_root = options.root == communicator.rank();
  const bool in_place = out.is_none() && works_in_place(kind);
  const bool writes_input = in_place && (kind == CallKind::allreduce || is_root != (kind == CallKind::broadcast));
  const bool gets_result = kind == CallKind::gather || kind == CallKind::reduce ? is_root : true;
  const bool puts_in = kind != CallKind::scatter || is_root;
  BoundCall bound;
  bound.call.signature = {.root = options.root,
                          .kind = kind,
                          .op = reduce_op_from_name(options.op),
                          .algorithm = transport::algorithm_from_name(options.algorithm)};
  Signature& signature = bound.call.signature;
  if (puts_in) {
    bound.input = view_tensor(x, writes_input ? Access::write : Access::read, "the tensor");
  }
  if (!in_place && gets_result) {
    bound.output = view_tensor(out, Access::write, "out");
  }
  place(bound, puts_in, !in_place && gets_result);
  const TensorView& known = puts_in ? bound.input : bound.output;
  signature.dtype = known.dtype;
  signature.count = known.count;
  if (kind == CallKind::alltoall || (kind == CallKind::scatter && is_root)) {
    signature.count = block_count(known, ranks, kind);
  } else if (kind == CallKind::allgatherv) {
    signature.count = std::accumulate(options.counts.begin(), options.counts.end(), std::size_t{0});
    signature.detail = collective::hash_of(options.counts);
    bound.call.counts = options.counts;
    check_own_count(communicator, options.counts, known.count);
  }
  if (options.wire) {
    signature.wire = collective::rounding_wire(dtype_from_name(*options.wire), signature.dtype);
  }
  bound.call.input = bound.input.data;
  bound.call.output = in_place && (writes_input || kind == CallKind::broadcast) ? bound.input.data : bound.output.data;
  if (!in_place && gets_result && puts_in) {
    check_output(bound.output, bound.input, collective::output_count(signature, ranks, communicator.rank()), "out");
    if (bound.output.data != bound.input.data && overlap(bound.input, bound.output)) {
      throw Error(ErrorKind::value, "out overlaps the tensor, without being the same memory");
    }
    if (!works_in_place(kind) && bound.input.count > 0 && bound.output.count > 0 &&
        bound.output.data == bound.input.data) {
      throw Error(ErrorKind::value, "out must not be the tensor itself in " + std::string(name_of(kind)));
    }
  }
  return bound;
}

// MPI may still write to the tensors of a call that was given up: they must live for ever.
template <class... Tensors>
void keep_if_stuck(const Communicator& communicator, Tensors&... tensors) {
  if (communicator.group().stuck()) {
    (tensors.owner.release(), ...);
  }
}

// A blocking call ends before it returns; an asynchronous one hands back the handle and what must stay alive with it.
void run(Communicator& communicator, BoundCall bound) {
  try {
    {
      const WithoutGil release;
      communicator.run(bound.call);
    }
    if (bound.call.placement && !bound.streams_are_known) {
      synchronize(*bound.call.placement);
    }
  } catch (...) {
    keep_if_stuck(communicator, bound.input, bound.output);
    throw;
  }
}

py::tuple submit(Communicator& communicator, const BoundCall& bound) {
  return py::make_tuple(communicator.submit(bound.call), bound.input.owner, bound.output.owner);
}

// Defines `name` and `name_async`.
void def_collective(py::class_<Communicator, std::shared_ptr<Communicator>>& cls, CallKind kind) {
  const std::string name(transport::name_of(kind));
  cls.def(
      name.c_str(),
      [kind](Communicator& communicator, py::handle x, const Op& op, const Root& root, const AlgorithmName& algorithm,
             const Wire& wire, const Counts& counts, py::handle out) {
        run(communicator,
            bind_call(communicator, kind, {op.value, root.value, algorithm.value, wire.value, counts.value}, x, out));
      },
      py::arg("x"), py::arg("op"), py::arg("root"), py::arg("algorithm"), py::arg("wire"), py::arg("counts"),
      py::arg("out"));
  cls.def((name + "_async").c_str(),
          [kind](Communicator& communicator, py::handle x, const Op& op, const Root& root,
                 const AlgorithmName& algorithm, const Wire& wire, const Counts& counts, py::handle out) {
            return submit(communicator,
                          bind_call(communicator, kind,
                                    {op.value, root.value, algorithm.value, wire.value, counts.value}, x, out));
          },
          py::arg("x"), py::arg("op"), py::arg("root"), py::arg("algorithm"), py::arg("wire"), py::arg("counts"),
          py::arg("out"));
}

void wait_for(Handle& handle, const Timeout& timeout, py::handle result) {
  {
    const WithoutGil release;
    handle.wait(timeout.value);
  }
  if (handle.ends_on_device()) {
    if (const auto stream = current_stream(result)) {
      handle.order(*stream);
    } else {
      const WithoutGil release;
      handle.synchronize();
    }
  }
}

void send(Communicator& communicator, py::handle x, const Rank<"dest">& to) {
  TensorView tensor = view_tensor(x, Access::read, "the tensor");
  try {
    const WithoutGil release;
    communicator.send(to.value, tensor.data, tensor.count, tensor.dtype, tensor.placement);
  } catch (...) {
    keep_if_stuck(communicator, tensor);
    throw;
  }
}

void receive(Communicator& communicator, py::handle x, const Rank<"source">& from) {
  TensorView tensor = view_tensor(x, Access::write, "the tensor");
  try {
    const WithoutGil release;
    communicator.receive(from.value, tensor.data, tensor.count, tensor.dtype, tensor.placement);
  } catch (...) {
    keep_if_stuck(communicator, tensor);
    throw;
  }
}

// An MPI handle, a pointer or an int, as the number by which mpi4py knows it.
template <class MpiHandle>
std::uintptr_t number_of(MpiHandle handle) {
  if constexpr (std::is_pointer_v<MpiHandle>) {
    return reinterpret_cast<std::uintptr_t>(handle);
  } else {
    return static_cast<std::uintptr_t>(handle);
  }
}

// The new communicator, as that number.
std::uintptr_t split(Communicator& communicator, const Color& color, const Key& key) {
  if (color.value && *color.value < 0) {
    throw Error(ErrorKind::value, "a color is a number of 0 or more, or None, not " + std::to_string(*color.value));
  }
  const WithoutGil release;
  const MPI_Comm part = communicator.split(color.value.value_or(-1), key.value.value_or(communicator.rank()));
  return number_of(part);
}

// What the calling thread did from `begin` to `end`, in seconds of the steady clock, goes into the timeline, if any.
void record_span(const Communicator& communicator, const std::string& name, double begin, double end) {
  if (const auto timeline = communicator.timeline()) {
    const auto time = [](double seconds) {
      return Timeline::Time(
          std::chrono::duration_cast<Timeline::Clock::duration>(std::chrono::duration<double>(seconds)));
    };
    timeline->span(timeline->thread_track(), name, time(begin), time(end));
  }
}

// Which way an allreduce goes: (from so many bytes on, path, why).
py::list ways(const Communicator& communicator, bool in_node_memory) {
  const collective::Group& group = communicator.group();
  py::list found;
  for (const auto& way : collective::select_for_all_sizes(
           group.situation({.kind = CallKind::allreduce, .dtype = DType::float32}, in_node_memory), group.config())) {
    found.append(py::make_tuple(way.from, collective::name_of(way.choice.path), way.choice.reason));
  }
  return found;
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
  facts["allreduce_of_arrays"] = ways(communicator, false);
  facts["allreduce_of_node_memory"] = ways(communicator, true);
  facts["direct_read"] = group.direct_read_remark().empty() ? "available" : group.direct_read_remark();
  facts["simd"] = name_of(compute::active_simd());
  facts["mpi_library"] = transport::mpi_library_version();
  facts["staging_bytes_per_rank"] = 2 * group.node().staging_bytes();
  py::dict settings;
  for (const ConfigField& field : config_fields()) {
    settings[py::str(std::string(field.name))] = get_field(group.config(), field.name);
  }
  facts["settings"] = settings;
  if (const collective::DeviceGroup* const devices = communicator.device_group()) {
    facts["device"] = devices->device();
    facts["nccl"] = devices->no_nccl().empty() ? "available" : devices->no_nccl();
    facts["device_memory"] = devices->no_peers().empty() ? "available" : devices->no_peers();
  }
  return facts;
}

}  // namespace

void bind_communicator(py::module_& module) {
  py::class_<Handle, std::shared_ptr<Handle>>(module, "Handle")
      .def_property_readonly("done", &Handle::done)
      .def_property_readonly("device_done", &Handle::device_done)
      .def_property_readonly("untold", &Handle::untold, "Why it failed, if it did and nobody has been told.")
      .def("told", &Handle::told)
      .def_property_readonly("path", [](const Handle& handle) { return collective::name_of(handle.outcome().path); })
      .def_property_readonly("nonfinite", [](const Handle& handle) { return handle.outcome().nonfinite; })
      .def_property_readonly("bytes_sent", [](const Handle& handle) { return handle.outcome().bytes_sent; })
      .def(
          "wait", &wait_for, py::arg("timeout"), py::arg("result"),
          "For a result on a device: until it is known how the call ends. What is put into the result's current stream "
          "from then on sees it; where that is not known, it is there.");

  module.def(
      "launcher_trouble",
      [](std::uintptr_t mpi_comm_address) {
        return transport::launcher_trouble(*reinterpret_cast<MPI_Comm*>(mpi_comm_address));  // NOLINT: from mpi4py
      },
      py::arg("mpi_comm_address"));

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
             const WithoutGil release;
             auto made = Communicator::make(comm, config);
             made->attend_with(&attend_to_signals);
             return made;
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
      .def("allocate", &Communicator::allocate, py::arg("bytes"), py::call_guard<WithoutGil>())
      .def("allocate_on_device", &Communicator::allocate_on_device, py::arg("device"), py::arg("bytes"),
           py::call_guard<WithoutGil>())
      .def("close", &Communicator::close, py::arg("drain"), py::call_guard<WithoutGil>())
      .def("describe", &describe)
      .def("start_timeline", &Communicator::start_timeline, py::arg("path"), py::call_guard<WithoutGil>())
      .def("stop_timeline", &Communicator::stop_timeline)
      .def("record_span", &record_span, py::arg("name"), py::arg("begin"), py::arg("end"))
      .def("send", &send, py::arg("x"), py::arg("to"))
      .def("receive", &receive, py::arg("x"), py::arg("from"))
      .def("split", &split, py::arg("color"), py::arg("key"))
      .def("barrier",
           [](Communicator& self) {
             const WithoutGil release;
             self.run({{.kind = CallKind::barrier}, nullptr, nullptr});
           })
      .def("barrier_async", [](Communicator& self) {
        return py::make_tuple(self.submit({{.kind = CallKind::barrier}, nullptr, nullptr}), py::none(), py::none());
      });
  for (const CallKind kind :
       {CallKind::allreduce, CallKind::broadcast, CallKind::reduce, CallKind::allgather, CallKind::reduce_scatter,
        CallKind::alltoall, CallKind::gather, CallKind::scatter, CallKind::allgatherv}) {
    def_collective(communicator, kind);
  }
  Communicator::watch_forks();
}

}  // namespace gradientflow::bindings
